"""Records and commits start batches despite triggers."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from streaming.drivers import Driver, Row, SharedDriver, rows_of
from streaming.sending import send_numbers

from tidemark.clock import boot_clock_ms, wall_clock_ms
from tidemark.local import broker as embedded

TOPIC, TRIGGER_MS = "woken", 30_000
TOML = f"""
name = "woken"
trigger = "{TRIGGER_MS} ms"
[operators.events]
kind = "source"
sub_topology = "first"
topic = "{TOPIC}"
fields = "n bigint, at bigint"
timestamp = "at"
bound = "1 min"
[operators.by_n]
kind = "repartition"
input = "events"
key = ["n"]
columns = ["at"]
[operators.latest]
kind = "table"
sub_topology = "second"
input = "by_n"
key = ["n"]
[operators.board]
kind = "sink"
input = "latest"
table = "board"
"""


def test_neither_records_nor_commits_wait_for_a_trigger(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    file, warehouse = tmp_path / "woken.toml", tmp_path / "warehouse"
    file.write_text(TOML)
    # The first batch has records, so that the driver asks the broker for more, and the next batch may begin early.
    send_numbers(broker, TOPIC, 0, 1)
    with ExitStack() as stack:
        for name in ("second", "first"):
            driver = Driver(name, tmp_path, broker, topology="woken", shared=shared)
            stack.callback(driver.end)
            driver.wait_for_batches(1)
        sent_ms = wall_clock_ms()
        send_numbers(broker, TOPIC, 2)
        driver.wait(lambda: sum(row["records_in"] for row in batches(warehouse, "second")) == 3, "all records")
    written, read = (batches(warehouse, name) for name in ("first", "second"))
    assert [row["records_in"] for row in written] == [2, 1]
    assert written[-1]["decided_at"] - sent_ms < TRIGGER_MS / 2
    assert read[-1]["decided_at"] - written[-1]["finished_at"] < TRIGGER_MS / 2
    check_phases(rows_of(warehouse, "woken", "first", "batches"))


def check_phases(rows: list[Row]) -> None:
    """Checks that Spark's part of the life of a driver is told, without a gap."""
    for before, after in pairwise(rows):
        told_ms = sum(phase["ms"] for phase in after["phases"])
        assert told_ms == after["phases_boot_ms"] - before["phases_boot_ms"]
    told = {(phase["owner"], phase["detail"]) for row in rows for phase in row["phases"]}
    expected = {
        ("trigger", ""),
        ("broker", "events"),
        ("operator", "by_n"),
        ("target", "hop_by_n"),
        ("target", "journal"),
    }
    assert expected | {("spark", "commit"), ("spark", "planning")} <= told
    for row in rows:
        # The plan was made before the batch began, and after the look before.
        assert (row["excluded_boot_ms"] or 0) <= row["looked_boot_ms"] <= row["started_boot_ms"]
        assert row["started_at"] - row["started_boot_ms"] == pytest.approx(wall_clock_ms() - boot_clock_ms(), abs=1_000)


def batches(warehouse: Path, sub_topology: str) -> list[Row]:
    """Returns the batches of *sub_topology* that read records."""
    return [row for row in rows_of(warehouse, "woken", sub_topology, "batches") if row["records_in"]]
