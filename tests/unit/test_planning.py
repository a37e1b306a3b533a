"""Between two batches Spark commits and then waits, and both are told while they last."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.semantics.segments import NEXT, Segment
from tidemark.stream.driver.planning import Planning
from tidemark.stream.journal.timeline import Timeline

BOOTED_MS = 1_700_000_000_000


def test_a_silence_is_told_as_a_wait_once_spark_has_committed(tmp_path: Path) -> None:
    """Batch 7 returns at 10 s; Spark has recorded it as done at 11 s. The next look is at 70 s, and finds records."""
    now_ms = 10_000
    timeline = Timeline(lambda: now_ms)
    planning = Planning(timeline, tmp_path, "orders", plan_every_ms=1_000, clock=lambda: BOOTED_MS + now_ms)
    timeline.work_on(7)
    planning.returned(7)
    now_ms = 10_500
    planning.waits()
    commit = Segment("spark", "commit", 7, 10_000, 10_500)
    assert timeline.open() == (commit,)

    done = tmp_path / "commits" / "7"
    done.parent.mkdir()
    done.write_text("v1")
    os.utime(done, (0, (BOOTED_MS + 11_000) / 1_000))
    for now_ms in (12_000, 40_000):
        planning.waits()
        waited = Segment("trigger", "", NEXT, 11_000, now_ms)
        assert timeline.open() == (commit._replace(ended_ms=11_000), waited)

    now_ms = 70_100
    assert planning.book(8, BOOTED_MS + 70_000) == 69_000
    planning.waits()
    assert timeline.open() == (
        commit._replace(ended_ms=11_000), waited._replace(ended_ms=70_000),
        Segment("spark", "planning", NEXT, 70_000, 70_100), Segment("engine", "", NEXT, 70_100, 70_100),
    )  # fmt: skip
