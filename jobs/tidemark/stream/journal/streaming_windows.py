"""Counts the records of streaming windows until a batch closes them.

A window is outstanding from its first record until the watermark passes its end. As in Apex
(THROUGHPUT_CALCULATION_MAX_SAMPLES) only a limited number are measured: older ones are remembered as outstanding, in
spans, without the number of their records. So a batch pays for the windows that it touches or closes, and for no more
than that number besides. Windows of aggregates are something else: they are state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemark.selection import pick
from tidemark.semantics.progress import StreamProgress

NOTHING_PASSED = -(2**63)
Spans = tuple[tuple[int, int], ...]
"""The first and the last start of each run of adjacent windows."""


@dataclass(frozen=True)
class ClosedWindow:
    """A window that a batch closed.

    `records` has the number of its records that each operator finished, or is None if they were not counted.
    """

    start_ms: int
    records: Mapping[str, int] | None


@dataclass(frozen=True)
class StreamingWindows:
    """Counts records per streaming window: windows have the length *window_ms*, and at most *most* are measured."""

    window_ms: int
    most: int

    def with_opened(self, now: StreamProgress, starts: Iterable[int]) -> StreamProgress:
        """Returns *now* with the windows that begin at *starts* added to those outstanding."""
        outstanding = {*now.windows}
        for start in starts:
            # A window in a span is outstanding already, and its records are not counted any more.
            if not any(first <= start <= last for first, last in now.uncounted):
                outstanding.add(start)
        return replace(now, windows=tuple(sorted(outstanding)))

    def count(
        self, now: StreamProgress, finished: Mapping[str, Mapping[int, int]]
    ) -> tuple[StreamProgress, list[ClosedWindow]]:
        """Adds the records of a batch, and closes the windows that the watermark of *now* has passed.

        *finished* has the number of records that the batch finished, by operator and start of the window.

        Returns:
            The progress with the new counts and without the closed windows, and the closed windows.
        """
        passed_ms = self._passed(now.watermark_ms)
        records = {name: _add(now.records.get(name, {}), per) for name, per in finished.items()}
        closed: list[ClosedWindow] = []
        for first, last in now.uncounted:
            # Of windows in spans the records are not known any more.
            starts = range(first, min(last, passed_ms) + 1, self.window_ms)
            closed += [ClosedWindow(start, None) for start in starts]
        outstanding: list[int] = []
        for start in now.windows:
            if start <= passed_ms:
                closed.append(ClosedWindow(start, {name: per.get(start, 0) for name, per in records.items()}))
            else:
                outstanding.append(start)
        too_many, newest = outstanding[: -self.most], outstanding[-self.most :]
        uncounted = self._spans(now.uncounted, too_many, passed_ms)
        # Counts of windows before the oldest measured one are of windows in spans, or of closed ones.
        first_ms = newest[0] if uncounted and newest else passed_ms + 1
        kept = {name: self._measured(per, first_ms, newest) for name, per in records.items()}
        return replace(now, windows=tuple(newest), uncounted=uncounted, records=kept), closed

    def _passed(self, watermark_ms: int | None) -> int:
        """Returns the latest start of a window closed by `is_window_late`."""
        # A window [start, start + size) is closed when the watermark has reached its last millisecond.
        return NOTHING_PASSED if watermark_ms is None else watermark_ms + 1 - self.window_ms

    def _measured(self, per: Mapping[int, int], first_ms: int, outstanding: Iterable[int]) -> dict[int, int]:
        """Returns the counts *per* window that are kept: of windows from *first_ms* on.

        Kept are the counts of windows *outstanding*, and of at most as many others, the newest.
        """
        kept = {start: n for start, n in per.items() if start >= first_ms}
        if len(kept) <= self.most:
            return kept
        wanted = {*outstanding, *sorted(kept.keys() - {*outstanding})[-self.most :]}
        return pick(kept, wanted)

    def _spans(self, spans: Spans, more: Iterable[int], passed_ms: int) -> Spans:
        """Returns *spans* with *more* windows and without those up to *passed_ms*; adjacent windows form one span."""
        open_ = [(self._after(first, passed_ms), last) for first, last in spans if last > passed_ms]
        joined_spans: list[tuple[int, int]] = []
        for first, last in sorted([*open_, *((start, start) for start in more)]):
            # Spans are sorted, so a span can only join the last one.
            if joined_spans and first <= joined_spans[-1][1] + self.window_ms:
                joined_spans[-1] = (joined_spans[-1][0], max(joined_spans[-1][1], last))
            else:
                joined_spans.append((first, last))
        return tuple(joined_spans)

    def _after(self, first: int, passed_ms: int) -> int:
        """Returns *first*, or the first start after *passed_ms*."""
        if first > passed_ms:
            return first
        # Windows follow each other without a gap, so the next start is a multiple of the length away.
        return first + ((passed_ms - first) // self.window_ms + 1) * self.window_ms


def _add(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    return {**one, **{start: one.get(start, 0) + n for start, n in other.items()}}
