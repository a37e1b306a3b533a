"""A commit starts the reader's batch in one process, despite triggers."""

from __future__ import annotations

from pathlib import Path

from streaming.drivers import PATIENCE_S, Row, one_process, rows_of
from streaming.sending import send_numbers

from tidemark.control.folder import Control
from tidemark.control.process import wait_until
from tidemark.embedded import broker as embedded
from tidemark.model.project.layout import Layout

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


def test_a_reader_of_a_hop_does_not_wait_for_its_trigger(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    file, warehouse = tmp_path / "woken.toml", tmp_path / "warehouse"
    file.write_text(TOML)
    controls = {name: Control(Layout(warehouse).control("woken", name)) for name in ("first", "second")}

    def has_run(name: str, batches: int) -> bool:
        beat = controls[name].heartbeat()
        return beat is not None and beat.batches >= batches

    with one_process(tmp_path, file, list(controls), broker):
        wait_until(lambda: has_run("first", 1) and has_run("second", 1), "the first batches", PATIENCE_S)
        send_numbers(broker, TOPIC, 0, 1)
        wait_until(lambda: with_records(warehouse, "second") != [], "a hop", PATIENCE_S)
        for control in controls.values():
            control.request_drain(by="test", now_ms=1)
        wait_until(lambda: not any(control.is_held() for control in controls.values()), "the drain", PATIENCE_S)
    ((written,), (read,)) = (with_records(warehouse, name) for name in controls)
    assert (written["records_in"], read["records_in"]) == (2, 2)
    # Both triggers are at the same instants, multiples of their interval.
    assert read["decided_at"] // TRIGGER_MS == written["finished_at"] // TRIGGER_MS


def with_records(warehouse: Path, sub_topology: str) -> list[Row]:
    """Its batches that read records."""
    return [row for row in rows_of(warehouse, "woken", sub_topology, "batches") if row["records_in"]]
