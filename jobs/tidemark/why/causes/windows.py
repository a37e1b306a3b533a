"""Explains why a windowed aggregate holds its results: its first open window waits for the watermark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import polars as pl

from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import counted, for_people
from tidemark.model.settings.windows import Shape, Windows
from tidemark.model.topology import SubTopology
from tidemark.why.causes.inputs import QUIET_AFTER_MS, Inputs
from tidemark.why.causes.watermarks import Watermarks
from tidemark.why.evidence.findings import (
    NOTHING_WRONG,
    Cause,
    Trait,
    WhyFinding,
)
from tidemark.why.evidence.snapshot import Scene, watermark_text

WINDOW_NOT_CLOSED = Cause(
    "window_not_closed",
    Trait.USUAL | Trait.EVENT_TIME,
    "results wait for the watermark to pass the end of their window; the remarks before this one hold it back",
)
TIME_STANDS_STILL = Cause(
    "time_stands_still",
    Trait.QUIET | Trait.SILENCE | Trait.EVENT_TIME,
    "results wait for the end of their window, and every source is silent: the last window of the evening",
)
ALLOWED_LATENESS_HOLDS = Cause(
    "allowed_lateness_holds",
    Trait.USUAL,
    "a window is complete, and waits for late records",
)
SESSION_KEPT_OPEN = Cause(
    "session_kept_open",
    Trait.USUAL,
    "records keep coming to a session",
)


class HeldWindows:
    """The open windows of the aggregates of *scene*."""

    def __init__(self, scene: Scene, inputs: Inputs, watermarks: Watermarks) -> None:
        self._scene, self._inputs, self._watermarks = scene, inputs, watermarks

    def waiting(self, operator: Operator, windows: Windows, since_ms: int | None) -> Iterator[WhyFinding]:
        """Yields why the open *windows* of *operator* are not closed; their results have waited since *since_ms*."""
        open_windows = self._scene.of(operator.name).held_windows(operator.name)
        end_ms = open_windows["window_end"].min()
        if not isinstance(end_ms, int):
            return
        sub = self._scene.sub(operator.name)
        # A watermark passes a window when it reaches its last millisecond.
        needed_ms = end_ms - 1 + windows.allowed_lateness_ms
        blocked = list(self._watermarks.holding(sub, needed_ms))
        yield from blocked
        if not blocked and not self._scene.of(operator.name).driver.looks:
            return  # their records may have come, and no driver looks for them
        observation = self._seen(sub, open_windows.height, end_ms, needed_ms)
        if blocked:
            yield self._not_closed(operator, sub, observation, needed_ms, since_ms)
        else:
            yield (
                self._stands_still(operator, sub, observation)
                or self._in_allowed_lateness(operator, windows, sub, end_ms, needed_ms)
                or self._kept_open(operator, windows, open_windows)
                # A window that waits for records which come as usual is healthy.
                or self._scene.finding(NOTHING_WRONG, operator.name, f"{observation}; its records are coming", "wait")
            )

    def _seen(self, sub: SubTopology, n: int, end_ms: int, needed_ms: int) -> str:
        return (
            f"{counted(n, 'result waits', 'results wait')}, the first for a watermark of {iso(needed_ms)} "
            f"(window end {iso(end_ms)}); it is at {watermark_text(self._watermark_ms(sub))}"
        )

    def _watermark_ms(self, sub: SubTopology) -> int | None:
        mark = self._scene.of(sub.operators[0].name).marks.get((None, None))
        return mark.watermark_ms if mark else None

    def _not_closed(
        self, operator: Operator, sub: SubTopology, observation: str, needed_ms: int, since_ms: int | None
    ) -> WhyFinding:
        mark = self._scene.of(operator.name).marks.get((None, None))
        blocked_by = mark.blocked_by if mark else None
        sources = self._scene.sources(blocked_by or operator.name)
        # A watermark is a bound, and one ms, behind the newest record; the longest bound is enough for every source.
        needed = iso(needed_ms + max(source.bound_ms for source in sources.values()) + 1)
        return self._scene.finding(
            WINDOW_NOT_CLOSED,
            operator.name,
            observation,
            f"a record of {needed} or later in each partition that is not idle closes it",
            input=blocked_by or (next(iter(sources)) if len(sources) == 1 else None),
            partition=self._watermarks.slowest(sub, blocked_by),
            since_ms=since_ms,
        )

    def _stands_still(self, operator: Operator, sub: SubTopology, observation: str) -> WhyFinding | None:
        """Returns a finding if every source is silent, so that record time stands still; None otherwise."""
        reads = [(self._inputs.last_read_ms(source), source) for source in self._leading(sub)]
        read_ms, newest = max(reads, key=lambda read: read[0] or 0)
        if read_ms is None or newest.idle_advances:
            return None
        silence_ms = self._inputs.silent_ms(newest)
        if any(map(self._inputs.waiting, self._leading(sub))):
            return None
        if silence_ms <= (newest.idle_after_ms or QUIET_AFTER_MS):
            return None
        switch = "idle_advances = true" if newest.idle_after_ms else "idle_after and idle_advances = true"
        return self._scene.finding(
            TIME_STANDS_STILL,
            operator.name,
            f"{observation}, and no source has had a record for {for_people(silence_ms)}: only records move time",
            f"check that the producer of {newest.name} runs; so that windows close in silence, set {switch} for it, "
            "or have its producer send keep-alive records",
            input=newest.name,
            since_ms=read_ms,
        )

    def _leading(self, sub: SubTopology) -> list[Source]:
        """Returns the sources whose records move the watermark of *sub*, also those of the streams before it."""
        tables = sub.table_inputs()
        sources: list[Source] = []
        for source in sub.sources:
            if source.name in tables:
                continue
            match source:
                case Source():
                    sources.append(source)
                case HopSource():
                    sources += self._leading(self._scene.sub(source.repartition))
                case _:
                    assert_never(source)
        return sources

    def _in_allowed_lateness(
        self, operator: Operator, windows: Windows, sub: SubTopology, end_ms: int, needed_ms: int
    ) -> WhyFinding | None:
        """Returns a finding if the first window has ended, and is open only for late records; None otherwise.

        The window ends at *end_ms*, and the watermark *needed_ms*, later by `allowed_lateness`, closes it.
        """
        watermark_ms = self._watermark_ms(sub)
        if watermark_ms is None or watermark_ms < end_ms - 1:
            return None
        allowed = for_people(windows.allowed_lateness_ms)
        return self._scene.finding(
            ALLOWED_LATENESS_HOLDS,
            operator.name,
            f"the window that ended at {iso(end_ms)} is complete, and waits for late records until the watermark, "
            f"now at {watermark_text(watermark_ms)}, is at {iso(needed_ms)} (allowed_lateness = {allowed})",
            "wait, shorten allowed_lateness, or choose strategy = on_change to get results before",
        )

    def _kept_open(self, operator: Operator, windows: Windows, open_windows: pl.DataFrame) -> WhyFinding | None:
        """Returns a finding if records keep coming to an open session; None otherwise."""
        if windows.shape is not Shape.SESSION:
            return None
        recent = self._scene.of(operator.name).outcomes.lately(operator.name)["batch_id"].head(1)
        # A session ends one gap after its last record.
        length_ms = pl.col("window_end") - windows.size_ms - pl.col("window_start")
        growing = open_windows.filter(length_ms >= windows.size_ms, pl.col("batch_id") >= recent.item())
        if not growing.height:
            return None
        longest = growing.sort("window_start").row(0, named=True)
        newest_ms = longest["window_end"] - windows.size_ms
        return self._scene.finding(
            SESSION_KEPT_OPEN,
            operator.name,
            f"the session {longest['key']} has been open since {iso(longest['window_start'])}: records keep coming, "
            f"the newest of {iso(newest_ms)}; it ends {for_people(windows.size_ms)} after its last one",
            "wait, choose a shorter session gap or a tumbling window, or strategy = on_change to see it grow",
        )
