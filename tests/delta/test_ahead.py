"""The decision time of batches, and records from after it, through the engine and Delta."""

from __future__ import annotations

from pathlib import Path

from playing import NOON, Play, ms

HOUR = 3_600
COUNTED = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "3 s"
[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
window = { tumbling = "10 s" }
strategy = "on_window_close"
aggregates = { n = "count(*)" }
[operators.out]
kind = "sink"
input = "counts"
table = "out"
"""


def seconds(instant_ms: int) -> float:
    """After noon."""
    return (instant_ms - NOON) / 1_000


def decided(play: Play) -> list[float]:
    """The decision times of the batches that did something."""
    told = {row["batch_id"]: seconds(row["decided_at"]) for row in play.rows("watermarks")}
    return [told[batch_id] for batch_id in sorted(told)]


def test_after_a_silent_night_a_record_is_not_ahead(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(1))
    play.batch([play.row("events", ms(12 * HOUR))], at_ms=ms(12 * HOUR + 1))
    assert decided(play) == [1, 12 * HOUR + 1]


def test_a_batch_is_decided_as_of_its_plan(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(1))
    play.start("0")  # the driver was killed after Spark planned a batch; the next one runs it an hour later
    play.process(1, [play.row("events", ms(4))], at_ms=ms(5), now_ms=ms(HOUR), sub="0")
    assert decided(play) == [1, 5]


def test_a_clock_set_back_does_not_set_time_back(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(60))
    play.batch([play.row("events", ms(1))], at_ms=ms(50))
    assert decided(play) == [60, 60]
