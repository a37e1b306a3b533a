"""A commit starts the reader's batch in one process, despite triggers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from streaming.drivers import Driver, Row, SharedDriver, rows_of
from streaming.sending import send_numbers

from tidemark.embedded import broker as embedded

TOPIC, TRIGGER_MS = "handed_on", 20_000
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


def test_a_reader_of_a_hop_does_not_wait_for_its_trigger(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    file, warehouse = tmp_path / "woken.toml", tmp_path / "warehouse"
    file.write_text(TOML)
    with ExitStack() as stack:
        drivers = [Driver(name, tmp_path, broker, topology="woken", shared=shared) for name in ("first", "second")]
        for driver in drivers:
            stack.callback(driver.end)
        for driver in drivers:
            driver.wait_for_batches(1)
        send_numbers(broker, TOPIC, 0, 1)
        drivers[1].wait(lambda: with_records(warehouse, "second") != [], "a hop")
    ((written,), (read,)) = (with_records(warehouse, name) for name in ("first", "second"))
    assert (written["records_in"], read["records_in"]) == (2, 2)
    # Both triggers are at the same instants, multiples of their interval.
    assert read["decided_at"] // TRIGGER_MS == written["finished_at"] // TRIGGER_MS


def with_records(warehouse: Path, sub_topology: str) -> list[Row]:
    """Its batches that read records."""
    return [row for row in rows_of(warehouse, "woken", sub_topology, "batches") if row["records_in"]]
