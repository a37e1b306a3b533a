"""Decision times of batches and later records, through engine and Delta."""

from __future__ import annotations

from pathlib import Path

from support.play import NOON, Play, ms
from support.topologies import aggregate, sink, source, topology_of
from tidemark.model.topology import on_processing_time
from tidemark.semantics.buckets import value_of

HOUR = 3_600
COUNTED = topology_of(
    events=source("id string", bound="3 s", max_ahead=None),
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, strategy="on_window_close", aggregates={"n": "count(*)"}),
    out=sink("counts", table="out"),
)


def seconds(instant_ms: int) -> float:
    """After noon."""
    return (instant_ms - NOON) / 1_000


def decided(play: Play) -> list[float]:
    """The decision times of the batches that did something."""
    told = {row["batch_id"]: seconds(row["decided_at"]) for row in play.rows("partition_batches")}
    return [told[batch_id] for batch_id in sorted(told)]


def test_a_record_after_a_silent_night_is_not_ahead(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(1))
    play.batch([play.row("events", ms(12 * HOUR))], at_ms=ms(12 * HOUR + 1))
    assert decided(play) == [1, 12 * HOUR + 1]


def test_a_batch_is_decided_as_of_its_plan(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(1))
    play.start()  # the driver was killed after Spark planned a batch; the next one runs it an hour later
    play.process(1, [play.row("events", ms(4))], at_ms=ms(5), now_ms=ms(HOUR))
    assert decided(play) == [1, 5]


def test_a_clock_set_back_does_not_set_time_back(tmp_path: Path) -> None:
    play = Play(COUNTED, tmp_path)
    play.batch([play.row("events", ms(0))], at_ms=ms(60))
    play.batch([play.row("events", ms(1))], at_ms=ms(50))
    assert decided(play) == [60, 60]


def taken(toml: str, home: Path, *ahead_s: float, processing: bool = False) -> Play:
    """Runs batches at 10, 20 and 40 s with new drivers.

    Their records are of 5 s, then those *ahead_s* of 20 s, then of 21 s and 39 s.
    """
    play = Play(toml, home, change=on_processing_time if processing else lambda topology: topology)
    times = [[5.0], [20 + s for s in ahead_s], [21.0, 39.0]]
    for number, (at_s, records) in enumerate(zip((10, 20, 40), times, strict=True)):
        play.start()
        rows = [play.row("events", ms(s), id="a") | {"value": b"sent"} for s in records]
        play.process(number, rows, at_ms=ms(at_s))
    return play


def watermarks(play: Play) -> list[float]:
    """Returns the watermark of the whole stream by batch."""
    return [seconds(row["watermark"]) for row in play.rows("batches")]


def results(play: Play) -> list[tuple[float, int]]:
    """The starts of the windows that were closed, and their counts."""
    return [(seconds(row["window_start"]), row["n"]) for row in play.rows("out")]


def test_a_record_from_2090_is_quarantined_and_moves_no_time(tmp_path: Path) -> None:
    play = taken(COUNTED, tmp_path, 66 * 365 * 24 * HOUR)
    assert [(row["reason"], row["value"]) for row in play.rows("quarantine")] == [("timestamp_in_future", b"sent")]
    assert watermarks(play) == [1.999, 1.999, 35.999]
    assert results(play) == [(0, 1), (20, 1)]
    disorder = [each["bucket"] for row in play.rows("operator_batches") for each in row["disorder"] or ()]
    assert disorder
    assert all(value_of(bucket) < 60_000 for bucket in disorder), "tidemark bound adds them up"


def test_a_record_that_is_ahead_moves_time_up_to_the_clock(tmp_path: Path) -> None:
    play = taken(COUNTED, tmp_path, 1800)
    assert play.rows("quarantine") == []
    assert watermarks(play) == [1.999, 16.999, 35.999], "20 s and 39 s less the bound"
    assert results(play) == [(0, 1), (20, 1)], "the record of 21 s is on time"


def test_max_ahead_is_the_most_that_is_accepted(tmp_path: Path) -> None:
    play = taken(COUNTED, tmp_path, HOUR, HOUR + 0.001)
    assert [row["offset"] for row in play.rows("quarantine")] == [2]


def test_an_unlimited_source_follows_its_records(tmp_path: Path) -> None:
    toml = COUNTED.replace('bound = "3 s"', 'bound = "3 s"\nmax_ahead = "unlimited"')
    play = taken(toml, tmp_path, 10 * HOUR)
    assert play.rows("quarantine") == []
    assert watermarks(play)[1:] == [20 + 10 * HOUR - 3.001] * 2


def test_no_record_is_ahead_on_processing_time(tmp_path: Path) -> None:
    play = taken(COUNTED, tmp_path, 10 * HOUR, processing=True)
    assert play.rows("quarantine") == []
    assert watermarks(play) == [9.999, 19.999, 39.999]
