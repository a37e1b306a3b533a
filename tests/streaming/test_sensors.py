"""Compares `topologies/sensors.toml` with a plain-Python calculation.

Devices report, fall silent and come back.

One day's trouble in ten seconds, through a real broker and a driver as a user starts it, undisturbed.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
from streaming.drivers import Driver, Row, SharedDriver, batches_of, in_kafka, reads_of, rows_of
from streaming.laws import (
    by_batch,
    check_accounting,
    check_final,
    check_never_back,
    check_read_once,
    check_suppressed,
    counted,
    late_of,
    outcomes_of,
    skips_of,
    times_of,
    updates_of,
)
from streaming.sending import send
from streaming.sensors_feed import ALL_CLOSED, PARTITION, SETTLED, TOPIC, closing, edge, feed
from streaming.sensors_oracle import ALLOWED_LATENESS_MS, BOUND_MS, sensors_of

from support.oracle import Oracle
from support.oracle_parts import Message, Place
from tidemark.local.broker import create_topics

TOPOLOGY, SUB = "sensors", "readings"
SPEED = 4
EVERY_DEVICE_HAS_REPORTED = 5_000
E_IS_SILENT_UNTIL = 36_000


@dataclass(frozen=True)
class Flow:
    """Results of a play: Kafka, Delta, and the calculation."""

    start_ms: int
    exit: int
    messages: list[Message]
    warehouse: Path
    oracle: Oracle

    def rows(self, table: str) -> list[Row]:
        return rows_of(self.warehouse, TOPOLOGY, SUB, table)


def play(home: Path, address: str, driver: Driver) -> int:
    """Sends the feed, its edge cases, and its end; returns its start.

    The edge is that of being late; the end closes every session.
    """
    start_ms = time.time_ns() // 1_000_000 - ALL_CLOSED  # no time goes by records that are ahead of the clock
    sent = feed(start_ms)
    settled_ms = start_ms + SETTLED - BOUND_MS - 1
    driver.wait(lambda: bool(driver.offsets()), "a first batch")
    early, then = (start_ms + until for until in (EVERY_DEVICE_HAS_REPORTED, E_IS_SILENT_UNTIL))
    parts = [[one for one in sent if one.at_ms < early], [one for one in sent if early <= one.at_ms < then]]
    for part in parts:
        send(part, address, speed=SPEED)
        driver.read_everything(address, {"readings": TOPIC})

    def is_e_idle() -> bool:
        rows = rows_of(home / "warehouse", TOPOLOGY, SUB, "partition_batches")
        return [row["activity"] for row in rows if row["partition"] == PARTITION["e"]][-1] == "idle"

    driver.wait(is_e_idle, "the silence of e")
    for part in (sent[sum(map(len, parts)) :], edge(settled_ms), closing(start_ms)):
        send(part, address, speed=SPEED)
        driver.read_everything(address, {"readings": TOPIC})
    return start_ms


@pytest.fixture(scope="module")
def flow(broker: str, shared: SharedDriver, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    home = tmp_path_factory.mktemp(TOPOLOGY)
    shutil.copy(Path(__file__).parent / "topologies" / f"{TOPOLOGY}.toml", home)
    create_topics(broker, {TOPIC: 3})
    driver = Driver(SUB, home, broker, topology=TOPOLOGY, shared=shared)
    try:
        start_ms = play(home, broker, driver)
        exit_status = driver.drain()
    finally:
        driver.end()
    messages = in_kafka(broker, TOPIC, source="readings")
    facts = (rows_of(home / "warehouse", TOPOLOGY, SUB, table) for table in ("batches", "partition_batches"))
    oracle = sensors_of(messages, batches_of(*facts))
    return Flow(start_ms, exit_status, messages, home / "warehouse", oracle)


def test_the_driver_ends_with_0_when_it_is_drained(flow: Flow) -> None:
    assert flow.exit == 0


def test_every_record_is_read_by_one_batch(flow: Flow) -> None:
    check_read_once(flow.rows("partition_batches"))
    reads = reads_of(flow.rows("partition_batches")).values()
    read = [place for part in chain.from_iterable(reads) for place in part.places()]
    assert sorted(read) == sorted(message.place for message in flow.messages)


def test_every_operator_counts_its_outcomes_in_every_batch(flow: Flow) -> None:
    check_accounting(flow.rows("operator_batches"))
    assert outcomes_of(flow.rows("operator_batches")) == counted(flow.oracle.outcomes)


def test_an_unusable_record_is_quarantined_with_its_reason(flow: Flow) -> None:
    rows = flow.rows("quarantine")
    seen = [(Place(row["source"], row["partition"], row["offset"]), row["reason"]) for row in rows]
    assert sorted(seen) == sorted(flow.oracle.quarantined)
    assert len({reason for _, reason in seen}) == 7
    kept = {message.place: (message.key, message.value) for message in flow.messages}
    assert {place: (row["key"], row["value"]) for row, (place, _) in zip(rows, seen, strict=True)} == {
        place: kept[place] for place, _ in seen
    }


def test_a_day_of_old_readings_is_late_at_the_source(flow: Flow) -> None:
    late = late_of(flow.rows("late_records"), "readings")
    assert late == sorted(flow.oracle["readings"].late)
    assert sum(one.timestamp_ms < flow.start_ms for one in late) == 24


def test_a_reading_is_late_exactly_when_its_session_has_closed(flow: Flow) -> None:
    assert late_of(flow.rows("late_records"), "device_sessions") == sorted(flow.oracle["device_sessions"].late)
    edge = {
        (row["key"], row["operator"], row["lateness_ms"])
        for row in flow.rows("late_records")
        if row["key"] in {"late", "closed", "open"}
    }
    assert edge == {("late", "readings", 15_000), ("closed", "device_sessions", 14_999)}
    assert [row["readings"] for row in flow.rows("sessions") if row["device"] == "open"] == [1]


def test_a_devices_state_changes_with_a_value_of_any_age(flow: Flow) -> None:
    assert updates_of(flow.rows("changes"), "device_now") == flow.oracle["device_now"].changes.sent
    assert skips_of(flow.rows("suppressed"), "device_now") == flow.oracle["device_now"].changes.skipped
    assert flow.oracle["device_now"].changes.skipped.total() > 100
    check_suppressed(flow.rows("operator_batches"), flow.rows("suppressed"))


def test_every_skip_names_the_change_that_it_repeats(flow: Flow) -> None:
    changes = {(r["operator"], r["key"], r["value_hash"], r["timestamp"]) for r in flow.rows("changes")}
    skips = [r for r in flow.rows("suppressed") if r["key"] != "a ghost"]
    assert {(r["operator"], r["key"], r["value_hash"], r["old_timestamp"]) for r in skips} <= changes


def test_devices_has_the_state_of_each_device_not_deleted(flow: Flow) -> None:
    rows = flow.rows("devices")
    said = ("device", "temp_c", "battery", "other", "timestamp", "batch_id")
    assert {row["device"]: {name: row[name] for name in said} for row in rows} == flow.oracle["devices"].current
    assert len(rows) == len(flow.oracle["devices"].current)
    assert {"a", "c", "d", "e"} <= set(flow.oracle["devices"].current)
    assert "b" not in flow.oracle["devices"].current
    assert flow.oracle["devices"].current["a"]["other"] in {'{"humidity":40}', '{"humidity":41}'}


def test_the_final_result_of_a_session_is_sent_once_when_closed(flow: Flow) -> None:
    changes = [row for row in flow.rows("changes") if row["operator"] == "device_sessions"]
    assert by_batch(changes, "device_sessions") == {
        n: found for n, found in flow.oracle["device_sessions"].sent.items() if found
    }
    check_final(flow.rows("batches"), changes, closed_after_ms=ALLOWED_LATENESS_MS)
    assert all(
        (row["window_start"], row["window_end"])
        == (json.loads(row["key"])["window_start"], json.loads(row["value"])["window_end"])
        for row in changes
    )


def test_the_sink_has_a_row_per_session_and_the_feed_closes_all(flow: Flow) -> None:
    expected = [
        {
            **json.loads(update.key),
            **json.loads(update.value or ""),
            "timestamp": update.timestamp_ms,
            "batch_id": batch_id,
            "source_partition": update.partition,
            "source_offset": update.offset,
            "deleted": False,
            "window_final": True,
        }
        for batch_id, updates in flow.oracle["device_sessions"].sent.items()
        for update in updates
    ]
    rows = sorted(flow.rows("sessions"), key=lambda row: (row["batch_id"], row["device"], row["window_start"]))
    assert rows == sorted(expected, key=lambda row: (row["batch_id"], row["device"], row["window_start"]))
    assert [row["readings"] for row in rows if row["device"] == "joined"] == [3]
    assert not flow.oracle["device_sessions"].groups


def test_partitions_and_source_advance_as_the_records_do(flow: Flow) -> None:
    check_never_back(flow.rows("partition_batches"))
    batches = flow.rows("batches")
    assert times_of(flow.rows("partition_batches"), batches, "readings") == flow.oracle.times_of("readings")
    whole = {batch["batch_id"]: batch["watermark"] for batch in batches}
    assert whole == flow.oracle.watermarks
    assert batches[-1]["watermark"] == flow.start_ms + ALL_CLOSED - BOUND_MS - 1


def test_a_silent_device_holds_back_only_until_it_is_idle(flow: Flow) -> None:
    activity = [times["readings", 2].activity for times in flow.oracle.times.values()]
    assert "idle" in activity
    assert "active" in activity[activity.index("idle") :], "it came back"
