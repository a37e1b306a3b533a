"""Compares a day of real flights with a plain-Python calculation.

It goes through Kafka, two Spark drivers and Delta.

The day is played with the first driver killed in the middle of a batch, and again before Spark commits a batch. In
`make supervision` it is also played undisturbed, and as `tidemark up` plays it, with every process of that killed once.
All must leave the tables as if every batch had run once, so every law is checked of each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from streaming.drivers import (
    BECAME,
    PATIENCE_S,
    PROJECT,
    Driver,
    Row,
    SharedDriver,
    batches_of,
    in_kafka,
    reads_of,
    rows_of,
)
from streaming.flights_oracle import FLIGHTS, WEATHER, carriers_of, delays, fields_of, status_of
from streaming.laws import ONE_ROW_PER
from streaming.under_airflow import UnderAirflow

from support.consumer_groups import group_offsets
from support.oracle import Oracle
from support.oracle import Row as OracleRow
from support.oracle_parts import EmitOnChange, Message, Place, Reached, sum_in_state
from support.recorded_facts import ages_and_sums
from tidemark.control.process import wait_until
from tidemark.local import airflow
from tidemark.local import broker as embedded
from tidemark.model.topology import parse
from tidemark.selection import present

TOPICS = {FLIGHTS: 3, WEATHER: 1, "carrier_delays": 1}
SPEED, SLOWLY = "14400", "200"
REPLAY = ["--from", "2013-06-27", "--to", "2013-06-28", "--speed", SPEED, "--weather-first", "--seed", "7"]
REPLAY += ["--offline-share", "0.02", "--repeat-share", "0.2", "--bad-records", "8"]

# The demo plays a day in a minute, this test in six seconds: the topology's times are shortened likewise.
BOUND_MS, IDLE_AFTER_MS, WINDOW_MS = 1_000, 2_000, 1_000
# Time stands still in its silence, so that what lies on the edge of the watermark can be sent (send_on_the_edge).
SHORTENED = {"bound": '"1 s"', "idle_after": '"2 s"', "window": '"1 s"', "idle_advances": "false"}

OPERATORS = {
    "status": [
        *(FLIGHTS, WEATHER, "flight_updates", "flight_status", "weather_now", "flight_weather", "flight_board"),
        "by_carrier",
    ],
    "carriers": ["by_carrier_source", "carrier_state", "carrier_delays"],
}
INPUTS = {  # where the records come from that an operator counts as its own
    "flight_updates": FLIGHTS,
    "flight_status": "flight_updates",
    "weather_now": WEATHER,
    "flight_weather": "flight_status",
    "flight_board": "flight_weather",
    "by_carrier": "flight_weather",
    "by_carrier_source": "by_carrier",
    "carrier_state": "by_carrier_source",
    "carrier_delays": "carrier_state",
}
EDGES = [*INPUTS.items(), ("flight_weather", "weather_now")]
REASONS = {  # of quarantine, by the fault that the replay injected
    **{fault: fault for fault in ("malformed_json", "invalid_utf8", "null_value")},
    **dict.fromkeys(
        ("timestamp_negative", "timestamp_zero", "timestamp_in_seconds", "timestamp_year_9999"),
        "timestamp_out_of_range",
    ),
}

SOURCES = {FLIGHTS: FLIGHTS, WEATHER: WEATHER}
EDGE = "on the edge"


@dataclass(frozen=True)
class Shown:
    """What the consumer group of `status` shows, and the ends of the newest batch that was carried out, as planned."""

    by_group: dict[str, int]
    by_plan: dict[str, int]

    @classmethod
    def of(cls, address: str, driver: Driver) -> Shown:
        """Returns it of a *driver* that has ended."""
        # While the note of the newest batch is rewritten, the batch before it is carried out.
        newest = driver.carried_out() if driver.carried_out() >= 0 else driver.last_decided() - 1
        by_plan: dict[str, int] = {}
        for line in (driver.control.home / "checkpoint" / "offsets" / str(newest)).read_text().splitlines():
            if line.startswith("{") and {*SOURCES.values()} & {*json.loads(line)}:
                for topic, ends in json.loads(line).items():
                    by_plan |= {f"{topic}/{number}": end for number, end in ends.items()}
        return cls(group_offsets(address, "tidemark-flights-status"), by_plan)


@dataclass(frozen=True)
class Flow:
    """Results of a played day: Kafka, Delta, and the calculation."""

    killed: list[str]
    exits: list[int]  # of drivers that were started here
    shown: list[Shown]  # after each kill, and at the end
    carried_out_ms: dict[int, int]  # by batch: when it was carried out; a driver was killed before Spark's commit
    summary: Row  # of the replay
    edge_ms: list[int]  # record times of what was sent after it
    messages: list[Message]
    delays: list[Message]
    warehouse: Path
    oracle: Oracle
    carriers: Oracle

    def rows(self, table: str, *sub_topologies: str) -> list[Row]:
        """The rows of one table, of both sub-topologies unless some are named."""
        return [row for name in sub_topologies or OPERATORS for row in rows_of(self.warehouse, "flights", name, table)]

    def judges(self) -> dict[str, EmitOnChange]:
        """Returns the oracle's results of each operator that sends changes."""
        judges = {name: self.oracle[name].changes for name in ("flight_status", "weather_now", "by_carrier")}
        return judges | {"carrier_state": self.carriers["carrier_state"].changes}


def time_of_flights(warehouse: Path) -> Row:
    """Returns the newest time over all airports, and their activity.

    If all are idle, time has come to its end.
    """
    rows = rows_of(warehouse, "flights", "status", "partition_batches")
    return [row for row in rows if row["source"] == FLIGHTS and row["partition"] is None][-1]


def send_on_the_edge(address: str, watermark_ms: int) -> list[int]:
    """Sends a flight four times around the watermark.

    At the watermark, ahead of it, as old again, and newer.

    The first is late; the second is new; the third says the same but is not strictly newer; the last is unchanged.
    """
    times_ms = [watermark_ms, watermark_ms + 1, watermark_ms + 1, watermark_ms + 2]
    known = next(fields for message in in_kafka(address, FLIGHTS) if isinstance(fields := fields_of(message), dict))
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    for time_ms in times_ms:
        value = json.dumps({**known, "flight": EDGE, "event_time": time_ms})
        producer.produce(FLIGHTS, value, EDGE, 0)
    assert producer.flush(PATIENCE_S) == 0
    return times_ms


def shortened_topology() -> str:
    toml = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()
    for key, value in SHORTENED.items():
        toml, number = re.subn(rf"(?m)^{key} = .*", f"{key} = {value}", toml)
        assert number, key
    return toml.replace("idle_advances = false", 'allowed_lateness = "0 ms"')  # a strict source


def play(home: Path, stack: ExitStack, shared: SharedDriver, *, kills: bool) -> Flow:
    """Play the day; whatever is started ends with *stack* at the latest."""

    def start(sub_topology: str, shared: SharedDriver | None = None) -> Driver:
        driver = Driver(sub_topology, home, address, topology="flights", shared=shared)
        stack.callback(driver.end)
        return driver

    warehouse, shown = home / "warehouse", list[Shown]()
    (home / "flights.toml").write_text("consumer_groups = true\n" + shortened_topology())
    stack.callback(embedded.stop, home / "broker")
    address = embedded.start(home / "broker").address
    embedded.create_topics(address, TOPICS)
    status, carriers = start("status"), start("carriers", shared)
    status.wait(lambda: bool(status.offsets()), "a first batch")

    command = [sys.executable, str(PROJECT / "jobs" / "replay.py"), "--bootstrap", address, *REPLAY]
    replay = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    stack.callback(replay.kill)
    if kills:
        status.wait(lambda: status.offsets().get(f"{FLIGHTS}/0", 0) > 0, "flights")
        status.kill_in_the_middle_of_a_batch()
        shown.append(Shown.of(address, status))
        status = start("status")
    printed, _ = replay.communicate(timeout=PATIENCE_S)
    assert replay.returncode == 0
    status.read_everything(address, SOURCES)
    status.wait(lambda: bool(time_of_flights(warehouse)["activity"] == "idle"), "silence at every airport")
    silent, carried_out_ms = status.carried_out(), {}
    edge_ms = send_on_the_edge(address, time_of_flights(warehouse)["watermark"])
    if kills:
        kill_before_spark_commits(status, warehouse, after=silent)
        shown.append(Shown.of(address, status))
        decided = status.last_decided()
        carried_out_ms[decided] = (status.control.home / "journal" / "carried_out").stat().st_mtime_ns // 1_000_000
        status = start("status", shared)
        status.wait(lambda: rows_of(warehouse, "flights", "status", "batches")[-1]["batch_id"] > decided, "a batch")
    status.read_everything(address, SOURCES)
    exits = [status.drain()]
    shown.append(Shown.of(address, status))
    last = rows_of(warehouse, "flights", "status", "hop_by_carrier")[-1]["batch_id"]
    carriers.wait(lambda: carriers.offsets() == {"by_carrier_source/0": last + 1}, "the end of the hop")
    exits.append(carriers.drain())

    killed = ["status"] * 2 * kills
    return flow_of(address, warehouse, printed, edge_ms, carried_out_ms, killed=killed, exits=exits, shown=shown)


def kill_before_spark_commits(driver: Driver, warehouse: Path, *, after: int) -> None:
    """Kills *driver* when the flight on the edge is in all tables.

    Spark commits that batch, which is later than *after*, only when it plans the next one: two seconds later, when the
    partition is idle, or at once if that batch has not read all records. So Spark may have committed it; then the
    driver goes on, and is killed after the next batch.
    """
    checkpoint = driver.control.home / "checkpoint"

    def holds() -> bool:
        decided = driver.carried_out()
        if decided <= after:
            return False
        newest = [driver.last_decided(), *(newest_batch(checkpoint / name) for name in ("offsets", "commits"))]
        board = rows_of(warehouse, "flights", "status", "flight_board")
        return newest == [decided, decided, decided - 1] and EDGE in {row["flight"] for row in board}

    driver.kill_when(holds, "the flight on the edge, before Spark commits it")


def newest_batch(folder: Path) -> int:
    """Returns the newest batch in a *folder* of Spark's checkpoint."""
    return max(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def play_under_airflow(home: Path, stack: ExitStack) -> Flow:
    """Plays the day slower under `tidemark up`, killing each process."""
    under = UnderAirflow(home, shortened_topology(), stack.enter_context(pytest.MonkeyPatch.context()))
    stack.callback(under.end)
    address = under.up()
    slowly = [SLOWLY if word == SPEED else word for word in REPLAY]
    command = [sys.executable, str(PROJECT / "jobs" / "replay.py"), "--bootstrap", address, *slowly]
    replay = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    stack.callback(replay.kill)
    killed = []
    for place in under.kill_each():
        killed.append(place)
        assert replay.poll() is None or not place.endswith("driver"), "the drivers are killed while flights come in"
    printed, _ = replay.communicate(timeout=24 * 3_600 / int(SLOWLY) + PATIENCE_S)
    assert replay.returncode == 0
    warehouse = home / "warehouse"
    under.read_everything(address, SOURCES)
    wait_until(lambda: bool(time_of_flights(warehouse)["activity"] == "idle"), "silence at every airport", PATIENCE_S)
    edge_ms = send_on_the_edge(address, time_of_flights(warehouse)["watermark"])
    under.read_everything(address, SOURCES)
    last = {"by_carrier_source/0": rows_of(warehouse, "flights", "status", "hop_by_carrier")[-1]["batch_id"] + 1}
    wait_until(lambda: under.offsets("carriers") == last, "the end of the hop", PATIENCE_S)
    under.drain()
    return flow_of(address, warehouse, printed, edge_ms, {}, killed=killed, exits=[], shown=[])


def flow_of(
    address: str,
    warehouse: Path,
    printed: bytes,
    edge_ms: list[int],
    carried_out_ms: dict[int, int],
    *,
    killed: list[str],
    exits: list[int],
    shown: list[Shown],
) -> Flow:
    messages = [message for topic in (FLIGHTS, WEATHER) for message in in_kafka(address, topic)]
    batches = batches_of(
        *(rows_of(warehouse, "flights", "status", table) for table in ("batches", "partition_batches"))
    )
    status = status_of(messages, batches, bound_ms=BOUND_MS, idle_after_ms=IDLE_AFTER_MS)
    return Flow(
        killed=killed,
        exits=exits,
        shown=shown,
        carried_out_ms=carried_out_ms,
        summary=json.loads(printed),
        edge_ms=edge_ms,
        messages=messages,
        delays=in_kafka(address, "carrier_delays"),
        warehouse=warehouse,
        oracle=status,
        carriers=carriers_of(status),
    )


@pytest.fixture(
    scope="module",
    params=["killed", *(pytest.param(name, marks=pytest.mark.long) for name in ("undisturbed", "all killed"))],
)
def flow(request: pytest.FixtureRequest, shared: SharedDriver, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    home = tmp_path_factory.mktemp("flow")
    with ExitStack() as stack:
        if request.param == "all killed":
            return play_under_airflow(home, stack)
        return play(home, stack, shared, kills=request.param == "killed")


@pytest.mark.parametrize("flow", [pytest.param("undisturbed", marks=pytest.mark.long), "killed"], indirect=True)
def test_a_drained_driver_exits_with_0_and_had_its_own_lease(flow: Flow) -> None:
    assert flow.exits == [0, 0]
    assert {row["epoch"] for row in flow.rows("batches", "status")} == set(range(1, len(flow.killed) + 2))
    assert {row["epoch"] for row in flow.rows("batches", "carriers")} == {1}


@pytest.mark.parametrize("flow", [pytest.param("undisturbed", marks=pytest.mark.long), "killed"], indirect=True)
def test_a_consumer_group_is_never_ahead_and_knows_the_end(flow: Flow) -> None:
    *killed, drained = flow.shown
    assert len(killed) == len(flow.killed)
    for shown in killed:
        assert {place for place, offset in shown.by_group.items() if offset > shown.by_plan[place]} == set()
    ends = Counter(f"{message.place.topic}/{message.place.partition}" for message in flow.messages)
    assert drained.by_group == ends


@pytest.mark.parametrize("flow", ["killed"], indirect=True)
def test_a_batch_carried_out_before_a_kill_keeps_its_clock(flow: Flow) -> None:
    finished_ms = {row["batch_id"]: row["finished_at"] for row in flow.rows("batches", "status")}
    ((batch_id, at_ms),) = flow.carried_out_ms.items()
    # The clock of files may lag by 10 ms; the next driver started hundreds of milliseconds later.
    assert finished_ms[batch_id] <= at_ms + 10


@pytest.mark.parametrize("flow", [pytest.param("all killed", marks=pytest.mark.long)], indirect=True)
def test_every_process_was_killed(flow: Flow) -> None:
    names = {place.rpartition("/")[2] for place in flow.killed}
    assert names == {"broker", "driver", *airflow.COMPONENTS}
    assert len(flow.killed) >= 12  # the drivers are two, and most have children


def test_every_acknowledged_record_is_read_by_one_batch(flow: Flow) -> None:
    assert len(flow.messages) == flow.summary["records"] + len(flow.edge_ms)
    read: list[Place] = []
    for reads in reads_of(flow.rows("partition_batches", "status")).values():
        for part in reads:
            read += (Place(part.topic, part.partition, o) for o in range(part.from_offset, part.until_offset))
    assert sorted(read) == sorted(message.place for message in flow.messages)
    assert sum(row["records_in"] for row in flow.rows("batches", "status")) == len(flow.messages)


def test_every_batch_is_read_once_by_the_second_sub_topology(flow: Flow) -> None:
    reads = [*reads_of(flow.rows("partition_batches", "carriers")).values()]
    assert all(len(read) == 1 for read in reads)
    froms, untils = zip(*((read[0].from_offset, read[0].until_offset) for read in reads), strict=True)
    assert froms == (0, *untils[:-1])
    assert untils[-1] == flow.rows("hop_by_carrier", "status")[-1]["batch_id"] + 1


def test_a_batch_has_each_row_of_facts_once(flow: Flow) -> None:
    for table, key in ONE_ROW_PER.items():
        rows = Counter((r["sub_topology"], r["batch_id"], *(r[name] for name in key)) for r in flow.rows(table))
        assert rows, table
        assert max(rows.values()) == 1, table


def test_what_was_injected_is_in_quarantine_and_nothing_else(flow: Flow) -> None:
    rows = flow.rows("quarantine")
    found = [(Place(row["topic"], row["partition"], row["offset"]), row["reason"]) for row in rows]
    assert sorted(found) == sorted(flow.oracle.quarantined)
    injected: Counter[str] = Counter()
    for fault, number in flow.summary["faults"].items():
        injected[REASONS[fault]] += number
    assert Counter(row["reason"] for row in rows) == injected
    kept = {message.place: (message.key, message.value) for message in flow.messages}
    assert [(row["key"], row["value"]) for row in rows] == [kept[place] for place, _ in found]


def test_a_record_is_late_exactly_at_or_behind_the_watermark(flow: Flow) -> None:
    rows = flow.rows("late_records")
    seen = [(Place(r["operator"], r["partition"], r["offset"]), r["timestamp"], r["watermark"]) for r in rows]
    assert seen == flow.oracle[FLIGHTS].late
    assert all(row["lateness_ms"] == row["watermark"] - row["timestamp"] for row in rows)
    kept = {message.place: (message.key, message.value) for message in flow.messages}
    assert [(r["key"].encode(), r["value"]) for r in rows] == [kept[late.place] for late in flow.oracle[FLIGHTS].late]


@pytest.mark.parametrize("operator", ["flight_status", "weather_now", "carrier_state"])
def test_changes_are_the_changing_updates_in_their_order(flow: Flow, operator: str) -> None:
    names = ("key", "value", "timestamp", "old_timestamp", "source_partition", "source_offset")
    rows = [row for row in flow.rows("changes") if row["operator"] == operator]
    sent = flow.judges()[operator].sent
    assert [tuple(row[name] for name in names) for row in rows] == sent
    assert len(sent) > len(flow.judges()[operator].stored), "some key must have changed"
    hashes = {(row["value"], row["value_hash"]) for row in rows}
    assert len(hashes) == len({value for value, _ in hashes}) == len({value_hash for _, value_hash in hashes})


def test_at_the_watermark_is_late_and_equal_age_is_a_change(flow: Flow) -> None:
    at_ms, ahead_ms, same_ms, newer_ms = flow.edge_ms
    late = [(row["timestamp"], row["lateness_ms"]) for row in flow.rows("late_records") if row["key"] == EDGE]
    changes = [(row["timestamp"], row["old_timestamp"]) for row in flow.rows("changes") if row["key"] == EDGE]
    suppressed = [(row["n"], row["max_timestamp"]) for row in flow.rows("suppressed") if row["key"] == EDGE]
    assert (late, changes) == ([(at_ms, 0)], [(ahead_ms, None), (same_ms, ahead_ms)])
    assert suppressed == [(1, newer_ms)]


def test_every_suppressed_update_is_accounted_for_by_key(flow: Flow) -> None:
    seen: dict[str, Counter[str]] = {name: Counter() for name in flow.judges()}
    for row in flow.rows("suppressed"):
        seen[row["operator"]][row["key"]] += row["n"]
    assert seen == {name: judge.skipped for name, judge in flow.judges().items()}
    assert seen["flight_status"].total() > 100


def test_every_skip_names_the_change_that_it_repeats(flow: Flow) -> None:
    changes = {(r["operator"], r["key"], r["value_hash"], r["timestamp"]) for r in flow.rows("changes")}
    skips = {(r["operator"], r["key"], r["value_hash"], r["old_timestamp"]) for r in flow.rows("suppressed")}
    assert skips <= changes
    newer = [row["max_timestamp"] > row["old_timestamp"] for row in flow.rows("suppressed", "status")]
    assert newer == [True] * len(newer) != []


def test_the_skip_total_counts_every_suppressed_update_so_far(flow: Flow) -> None:
    judged = [row for row in flow.rows("operator_batches") if row["operator"] in flow.judges()]
    totals: Counter[tuple[str, int]] = Counter()
    for row in flow.rows("operator_batches"):
        skips = [task["idempotent_update_skip_total"] for task in row["tasks"] or ()]
        if present(skips):
            totals[row["operator"], row["batch_id"]] = sum(present(skips))
    assert totals.keys() >= {(row["operator"], row["batch_id"]) for row in judged}
    # A batch that reads nothing has a row, too, if the minute of the rate has passed meanwhile.
    for (operator, batch_id), total in totals.items():
        of_it = [row for row in judged if row["operator"] == operator]
        assert total == sum(row["suppressed"] for row in of_it if row["batch_id"] <= batch_id), (operator, batch_id)


def place_of(row: OracleRow) -> Row:
    return {"source_partition": row.place.partition, "source_offset": row.place.offset}


def test_the_flight_board_has_each_change_with_its_weather(flow: Flow) -> None:
    rows = [{k: v for k, v in row.items() if k != "batch_id"} for row in flow.rows("flight_board", "status")]
    assert rows == [
        {**r.fields, "timestamp": r.timestamp_ms, **place_of(r), "deleted": False}
        for r in flow.oracle["flight_board"].rows
    ]
    assert len({row["temp_f"] for row in rows}) > 10


def test_the_last_state_of_each_carrier_sums_up_its_flights(flow: Flow) -> None:
    last, carriers = {row["key"]: row for row in flow.rows("state_changes")}, flow.carriers["carrier_state"].groups
    seen = {k: (json.loads(row["state"]), row["timestamp"]) for k, row in last.items()}
    assert seen == {
        key: (
            {
                **json.loads(key),
                "@flights": len(carrier.rows),
                "@departed": len(minutes := delays([row.fields for row in carrier.rows])),
                **sum_in_state("delay_min", minutes),
            },
            carrier.newest_ms,
        )
        for key, carrier in carriers.items()
    }
    flights = flow.oracle["flight_status"].changes.stored
    assert sum(len(carrier.rows) for carrier in carriers.values()) == len(flights)


def test_the_delay_bands_in_kafka_are_the_aggregates_changes(flow: Flow) -> None:
    sent = [
        (update.key, json.loads(update.key) | json.loads(update.value))
        for update in flow.judges()["carrier_state"].sent
    ]
    found = [((m.key or b"").decode(), json.loads(m.value or b"")) for m in flow.delays]
    if any("carriers" in name for name in flow.killed):  # a batch that is carried out again is sent again
        assert all(change in found for change in sent)
        assert all(change in sent for change in found)
    else:
        assert found == sent
    assert {value["delay_band"] for _, value in sent} == {"too few", "on time", "late", "severe"}


def test_accounting_closes_for_every_batch_and_operator(flow: Flow) -> None:
    for row in flow.rows("operator_batches"):
        assert row["records_in"] + row["held_before"] == sum(row[word] for word in BECAME), row


def test_what_an_operator_sends_on_is_what_the_next_one_takes_in(flow: Flow) -> None:
    total: dict[str, Counter[str]] = defaultdict(Counter)
    for row in flow.rows("operator_batches"):
        total[row["operator"]].update({word: n for word, n in row.items() if type(n) is int and word != "batch_id"})
    for operator, upstream in INPUTS.items():
        assert total[operator]["records_in"] == total[upstream]["emitted"] + total[upstream]["passed"] > 0, operator
    judged = {name: (total[name]["emitted"], total[name]["suppressed"]) for name in flow.judges()}
    assert judged == {name: (len(judge.sent), judge.skipped.total()) for name, judge in flow.judges().items()}
    assert sum(total[source]["quarantined"] for source in (FLIGHTS, WEATHER)) == len(flow.oracle.quarantined)
    assert (total[FLIGHTS]["late"], total[WEATHER]["late"]) == (len(flow.oracle[FLIGHTS].late), 0)


def test_a_window_closes_once_per_operator_after_its_upstreams(flow: Flow) -> None:
    finished_ms: dict[int, dict[str, int]] = defaultdict(dict)
    for row in flow.rows("operator_windows"):
        finished_ms[row["window_start"]][row["operator"]] = row["ewt_at"]
        assert row["window_end"] == row["window_start"] + WINDOW_MS
    late = {late.place for late in flow.oracle[FLIGHTS].late}
    usable = [
        (m.place, fields)
        for m in flow.messages
        if isinstance(fields := fields_of(m), dict) and m.place.topic == FLIGHTS
    ]
    opened = {fields["event_time"] // WINDOW_MS * WINDOW_MS for place, fields in usable if place not in late}
    reached_ms = flow.oracle.watermark_ms or 0
    assert set(finished_ms) == {start for start in opened if start + WINDOW_MS - 1 <= reached_ms} != set()
    for ewt_ms in finished_ms.values():
        assert set(ewt_ms) == {name for names in OPERATORS.values() for name in names}
        assert [(name, upstream) for name, upstream in EDGES if ewt_ms[name] < ewt_ms[upstream]] == []


def tasks_of(rows: Iterable[Row]) -> list[tuple[Row, Row]]:
    """Returns each measured task in *rows* of `operator_batches`, behind its row."""
    return [(row, task) for row in rows for task in row["tasks"] or () if task["n"] is not None]


def test_the_parts_of_each_windows_age_add_up_to_the_millisecond(flow: Flow) -> None:
    topology = parse(tomllib.loads(shortened_topology()), file="flights.toml")
    sums = ages_and_sums(flow.warehouse, topology).select("place", "batch_id", "end_ms", "sum_ms").rows()
    rows = flow.rows("operator_windows")
    assert rows
    assert sorted(sums) == sorted(
        (row["operator"], row["batch_id"], row["window_end"], row["ewt_at"] - row["window_end"]) for row in rows
    )


def test_the_latency_of_a_source_covers_every_usable_record(flow: Flow) -> None:
    rows = flow.rows("operator_batches", "status")
    finished_ms = {(row["batch_id"], row["operator"]): row["finished_at"] for row in rows}
    measured = {(row["batch_id"], row["operator"], task["task_id"]): task for row, task in tasks_of(rows)}
    expected: dict[tuple[int, str, str], tuple[int, ...]] = {}
    messages = {message.place: message for message in flow.messages}
    for batch_id, reads in reads_of(flow.rows("partition_batches", "status")).items():
        for read in reads:
            name = (batch_id, read.topic, f"status_{read.partition}")
            parsed = [fields_of(messages[place]) for place in read.places()]
            times_ms = [fields["event_time"] for fields in parsed if isinstance(fields, dict)]
            if times_ms and name in measured:
                ages_ms = [finished_ms[name[:2]] - time_ms for time_ms in times_ms]
                negative = sum(age_ms < 0 for age_ms in ages_ms)
                expected[name] = (len(ages_ms), min(ages_ms), max(ages_ms), sum(ages_ms), negative)
    columns = ("n", "min_ms", "max_ms", "sum_ms", "negative_n")
    found = {name: tuple(row[c] for c in columns) for name, row in measured.items() if name[1] in (FLIGHTS, WEATHER)}
    assert found == expected
    assert sum(n for n, *_ in found.values()) == len(flow.messages) - len(flow.oracle.quarantined)


def test_latencies_lie_between_extremes_and_fill_their_buckets(flow: Flow) -> None:
    bucketed, measured = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in flow.rows("latency_minutes"):
        bucketed[row["task_id"], row["operator"]] += sum(bucket["n"] for bucket in row["buckets"])
    rows = [row for row in flow.rows("operator_batches") if row["n"] is not None]
    for row, task in tasks_of(rows):
        measured[task["task_id"], row["operator"]] += task["n"]
    assert all(row["min_ms"] <= row["sum_ms"] / row["n"] <= row["max_ms"] for row in rows)
    assert all(row["started_at"] <= row["finished_at"] and row["queued_ms"] >= 0 for row in rows)
    assert bucketed == measured
    stateless = {"flight_updates", "flight_weather"}
    assert {row["operator"] for row in rows} == {name for names in OPERATORS.values() for name in names} - stateless


def test_partitions_and_sources_advance_as_the_oracle_computes(flow: Flow) -> None:
    rows = defaultdict(list)
    for row in flow.rows("partition_batches", "status"):
        rows[row["batch_id"]].append(row)
    told: dict[tuple[str | None, int | None], Reached] = {}
    for batch, times in zip(flow.rows("batches", "status"), flow.oracle.times.values(), strict=True):
        for row in rows[batch["batch_id"]]:
            told[row["source"], row["partition"]] = Reached(row["watermark"], row["activity"])
        whole = told.pop((None, None))
        assert told == times, batch
        told[None, None] = whole
        assert times[FLIGHTS, None].watermark_ms == whole.watermark_ms == batch["watermark"]
    assert any(times[FLIGHTS, None].activity == "idle" for times in flow.oracle.times.values())


def test_a_watermark_never_goes_back(flow: Flow) -> None:
    reached_ms: dict[tuple[str, str | None, int | None], int] = {}
    for row in flow.rows("partition_batches"):
        place = (row["sub_topology"], row["source"], row["partition"])
        assert (row["watermark"] or 0) >= reached_ms.get(place, 0), row
        reached_ms[place] = row["watermark"] or 0
    ends = [("status", None, None), ("carriers", "by_carrier_source", None), ("carriers", None, None)]
    assert {reached_ms[end] for end in ends} == {flow.oracle.watermark_ms}
