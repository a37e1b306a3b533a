"""Where something is always due, batches are a trigger apart."""

from __future__ import annotations

from pathlib import Path

from streaming.drivers import Driver, SharedDriver, rows_of

from tidemark.local import broker as embedded

TOPIC, TRIGGER_MS, BATCHES = "always_due", 500, 10
TOML = f"""
name = "always"
trigger = "{TRIGGER_MS} ms"
[operators.events]
kind = "source"
sub_topology = "all"
topic = "{TOPIC}"
fields = "id string, at bigint"
timestamp = "at"
bound = "1 s"
[operators.board]
kind = "sink"
input = "events"
table = "board"
"""


def test_batches_on_processing_time_are_a_trigger_apart(tmp_path: Path, broker: str, shared: SharedDriver) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    name = "always_on_processing_time"
    (tmp_path / f"{name}.toml").write_text(TOML)
    driver = Driver("all", tmp_path, broker, "--time", "processing", topology=name, shared=shared)
    try:
        driver.wait_for_batches(BATCHES)
    finally:
        driver.end()
    decided_ms = [row["decided_at"] for row in rows_of(tmp_path / "warehouse", name, "all", "batches")][:BATCHES]
    # One begins early, and the time of planning varies.
    assert decided_ms[-1] - decided_ms[0] >= (len(decided_ms) - 3) * TRIGGER_MS
    assert len(decided_ms) == BATCHES
