"""A real driver without records does due work on time.

Spark runs no batch in silence.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from confluent_kafka import Producer
from streaming.drivers import OnlyDriver, SharedDriver

from tidemark.local import broker as embedded
from tidemark.semantics.segments import Segment

TOPIC = "falls_silent"
TRIGGER_MS, IDLE_AFTER_MS = 500, 6_000
TOML = f"""
name = "silence"
trigger = "{TRIGGER_MS} ms"
[operators.events]
kind = "source"
topic = "{TOPIC}"
fields = "id string, at bigint"
timestamp = "at"
bound = "1 s"
idle_after = "6 s"
idle_advances = true
[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "4 s" }}
strategy = "on_window_close"
aggregates = {{ n = "count(*)" }}
[operators.counts_board]
kind = "sink"
input = "counts"
table = "counts_board"
"""


def waited_ms(driver: OnlyDriver) -> int:
    """Returns how long it has waited for its trigger, by its newest heartbeat; 0: it does something else."""
    beat = driver.control.heartbeat()
    assert beat is not None
    assert beat.told is not None
    running = Segment(*beat.told.segments[-1])
    return running.ended_ms - running.began_ms if running.owner == "trigger" else 0


def test_a_silent_stream_turns_idle_and_closes_without_batches(
    tmp_path: Path, broker: str, shared: SharedDriver
) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    with OnlyDriver(tmp_path, TOML, broker, shared=shared) as driver:
        driver.wait(lambda: driver.offsets() != {}, "the first batch")
        producer = Producer({"bootstrap.servers": broker})
        producer.produce(TOPIC, json.dumps({"id": "a", "at": time.time_ns() // 1_000_000}).encode())
        producer.flush()
        assert [row["n"] for row in driver.wait_for("counts_board", 1)] == [1]
        *_, read, idle = driver.wait_for("batches", 3)
        moved_ms = idle["finished_at"] + 2_000  # a driver that waits for nothing due is not stuck, and says so
        driver.wait(lambda: (beat := driver.control.heartbeat()) and beat.since_ms > moved_ms, "a beat that waits")
        # Whoever asks after a kill finds that it waited, and not that Spark was still committing the last batch.
        driver.wait(lambda: waited_ms(driver) > 4 * TRIGGER_MS, "a wait that is told")
        assert driver.drain() == 0
    assert (read["records_in"], idle["records_in"]) == (1, 0)
    # A window of 4 s that a record is in is over by the record's time + 6 s - 1 s: as soon as the stream is idle.
    due_at_ms = read["decided_at"] + IDLE_AFTER_MS + 1
    late_ms = idle["decided_at"] - max(due_at_ms, read["finished_at"])
    assert idle["decided_at"] >= due_at_ms
    assert late_ms < 8 * max(TRIGGER_MS, read["duration_ms"])
    assert idle["batch_id"] == read["batch_id"] + 1, "no trigger before it ran a batch"
