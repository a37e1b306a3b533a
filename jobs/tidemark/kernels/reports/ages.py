"""Splits ages of many streaming windows into parts, and blames growth.

The words are those of `semantics.blame`. The parts of an age add up to it. Instants are epoch ms and lengths ms, as
float64: they are whole numbers. NaN: no value. Each array has a value per window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from tidemark.kernels.reports.arrays import Floats, Mask, Places
from tidemark.semantics.blame import ENOUGH, AgeCause, AgePart, Compared
from tidemark.semantics.quantiles import MEDIAN, rank

CAUSES = tuple(AgePart.of(cause) for cause in AgeCause)
"""The first parts of every Ages."""
PLACE = {cause: place for place, cause in enumerate(AgeCause)}


@dataclass(frozen=True)
class Ages:
    """The ages of windows.

    Attributes:
        parts: CAUSES, and the operators.
        windows: number of windows.
        ms: the length of each part (a row) in each window (a column).
    """

    parts: Sequence[AgePart]
    windows: int
    ms: Floats = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ms", np.zeros((len(self.parts), self.windows)))

    def add(self, part: int | Places, ms: Floats) -> None:
        """Adds *ms* to the length of the part at a place.

        The place may differ between windows.
        """
        self.ms[part, np.arange(self.windows)] += ms


@dataclass(frozen=True, kw_only=True)
class ClosingBatches:
    """The batches that closed windows, and the batches before them.

    Attributes:
        began_ms: when they began.
        before_began_ms: when the batch before began; NaN: no such batch.
        before_ended_ms: when the batch before ended; NaN: no such batch.
        is_unread: the batch before left records of the blocking partition unread.
        is_unknown: it is not known if it did, or no record with a known timestamp closed the window.
        by_silence: silence let the window close, and no record did.
        has_restarted: records waited for another driver, which ran this batch or began to read the backlog.
        still_from_ms: since when records waited because the driver stood still; NaN: it did not.
    """

    began_ms: Floats
    before_began_ms: Floats
    before_ended_ms: Floats
    is_unread: Mask
    is_unknown: Mask
    by_silence: Mask
    has_restarted: Mask
    still_from_ms: Floats


def before_source(
    ages: Ages,
    end_ms: Floats,
    finished_ms: Floats,
    *,
    bound_ms: Floats,
    ready_ms: Floats,
    closing: ClosingBatches,
    trigger_ms: int,
    queued_ms: Floats,
    source: int,
    busy: Places,
) -> None:
    """Adds the parts of the ages at the source to *ages*.

    Args:
        ages: of the windows.
        end_ms: ends of the windows, record time.
        finished_ms: when the source had finished them.
        bound_ms: bound of the source.
        ready_ms: instant from which on the blocking partition could let the watermark pass the window's end: the
            timestamp of its record, or when its silence had lasted long enough.
        closing: the batches in which the watermark passed it.
        trigger_ms: trigger interval of the topology.
        queued_ms: wait of these batches for other streams of their process, from their beginning.
        source: place of the part that owns the rest of the time after the batch began.
        busy: place of the part that owns the time in which the driver was busy with the batch before.
    """
    waiting = np.where(closing.has_restarted, PLACE[AgeCause.DRIVER_RESTARTED], PLACE[AgeCause.BACKLOG])
    blocked = np.where(closing.by_silence, PLACE[AgeCause.SILENCE], PLACE[AgeCause.BLOCKING_PARTITION])
    silent = np.where(closing.is_unknown, PLACE[AgeCause.UNKNOWN], PLACE[AgeCause.LATE_PRODUCER])
    idle = np.where(closing.is_unread, waiting, silent)
    is_waiting = closing.is_unread | closing.has_restarted | ~np.isnan(closing.still_from_ms)
    # Each part ends at its instant, or where the part before it ended if that is later.
    until: list[tuple[int | Places, Floats]] = [
        (PLACE[AgeCause.BOUND], end_ms + bound_ms),
        (blocked, ready_ms),
        (idle, closing.before_began_ms),
        (np.where(closing.is_unread, idle, busy), closing.before_ended_ms),
        (idle, closing.still_from_ms),
        (np.where(is_waiting, waiting, idle), closing.began_ms - trigger_ms),
        (PLACE[AgeCause.TRIGGER], closing.began_ms),
        (PLACE[AgeCause.QUEUED], closing.began_ms + queued_ms),
    ]
    # A window may finish before its end: then the part of the bound is negative, and the sum is still the age.
    now_ms = np.minimum(end_ms, finished_ms)
    ages.add(PLACE[AgeCause.BOUND], now_ms - end_ms)
    for part, at_ms in until:
        # fmin and fmax pass over NaN.
        length_ms = np.fmax(0, np.where(np.isnan(at_ms), now_ms, np.fmin(at_ms, finished_ms)) - now_ms)
        ages.add(part, length_ms)
        now_ms = now_ms + length_ms
    ages.add(source, finished_ms - now_ms)


def share_out(
    ages: Ages, wait_ms: tuple[Floats, Floats], worked_ms: Sequence[tuple[int, Floats, Floats]], length_ms: Floats
) -> None:
    """Adds *length_ms* of queueing to the operators that worked meanwhile.

    The rest is QUEUED.

    Args:
        ages: of the windows.
        wait_ms: the instants between which the operator waited and worked.
        worked_ms: for each operator beside the path, in the order of the names: the place of its part, and the instants
            between which it worked in the same driver.
        length_ms: how long the operator waited.
    """
    if worked_ms:
        overlaps_ms = np.stack(
            [np.minimum(wait_ms[1], end) - np.maximum(wait_ms[0], start) for _, start, end in worked_ms]
        )
        parts, columns = np.array([part for part, _, _ in worked_ms]), np.arange(ages.windows)
        # Operators with the longest overlap come first: they get their share before the time is used up.
        for operator in np.argsort(-overlaps_ms, axis=0, kind="stable"):
            share_ms = np.maximum(0, np.minimum(overlaps_ms[operator, columns], length_ms))
            length_ms = length_ms - share_ms
            ages.add(parts[operator], share_ms)
    ages.add(PLACE[AgeCause.QUEUED], length_ms)


def usual_lengths(kept_ms: Floats, first: Places, last: Places) -> tuple[Floats, Floats]:
    """Returns usual lengths and shares of parts in the ages of windows.

    They are medians as in `semantics.quantiles`, NaN with fewer windows than ENOUGH. Windows without an age have no
    share.

    Args:
        kept_ms: the length of each part (a row) in windows that kept a promise (a column), oldest first.
        first: for each window, the first of these with which it is compared. They never decrease.
        last: the one after the last of these. They never decrease.
    """
    ages_ms = kept_ms.sum(axis=0)
    has_age = ages_ms > 0
    before = np.concatenate([[0], np.cumsum(has_age)])
    usual_ms = medians(kept_ms, first, last)
    usual_share = medians(kept_ms[:, has_age] / ages_ms[has_age], before[first], before[last])
    unknown = last - first < ENOUGH
    return np.where(unknown, np.nan, usual_ms), np.where(unknown, np.nan, usual_share)


def medians(values: Floats, first: Places, last: Places) -> Floats:
    """Returns the medians of each row of *values*, between places.

    A median is that of the values from a place *first* to before *last*.
    It is NaN without values. The places never decrease.
    """
    if not first.size:
        return np.empty((len(values), 0))
    is_new = np.concatenate([[True], (np.diff(first) != 0) | (np.diff(last) != 0)])
    starts, ends = first[is_new], last[is_new]
    sizes = ends - starts
    middles = np.full((len(values), starts.size), np.nan)
    # Most windows are compared with equally many.
    commonest = int(np.bincount(sizes).argmax())
    is_common = (sizes == commonest) & (sizes > 0)
    if is_common.any():
        for row, of_part in enumerate(values):
            middles[row, is_common] = _rolling_median(of_part, commonest)[ends[is_common] - 1]
    for place in np.flatnonzero((sizes != commonest) & (sizes > 0)):
        size = sizes[place]
        middle = rank(size, MEDIAN)
        middles[:, place] = np.partition(values[:, starts[place] : ends[place]], middle, axis=1)[:, middle]
    return middles[:, np.cumsum(is_new) - 1]


def _rolling_median(values: Floats, size: int) -> Floats:
    """Returns the median of the *size* values up to each one."""
    if not values.any():
        return np.zeros_like(values)
    series = pl.Series(values)
    middle: Floats = series.rolling_quantile(MEDIAN, interpolation="lower", window_size=size).to_numpy()
    return middle


class Lengths(NamedTuple):
    """What was judged of each part (a row) in each window (a column), and what it was compared with.

    Attributes:
        judged_ms: the length that was judged.
        expected_ms: the length that it was expected to have at most.
        compared: the place in COMPARED of what was compared.
    """

    judged_ms: Floats
    expected_ms: Floats
    compared: Places

    @property
    def excess_ms(self) -> Floats:
        """By how much each part is too long, 0 or more."""
        return np.maximum(0.0, self.judged_ms - self.expected_ms)


COMPARED = tuple(Compared)


def compared_lengths(
    ms: Floats, usual_ms: Floats, configured_ms: Floats, *, is_work: Mask, worked_ms: Floats, limit_ms: float
) -> Lengths:
    """Compares the work of operators with its limit, and other parts with their usual lengths.

    Args:
        ms: lengths of the parts.
        usual_ms: their usual lengths; NaN: the configured ones take their place.
        configured_ms: their configured lengths.
        is_work: parts of which only the work on the window is judged.
        worked_ms: by window, that work.
        limit_ms: of that work. Windows that kept it are the usual ones, so their median is no more.
    """
    is_unknown = np.isnan(usual_ms)
    of_age = np.where(is_unknown, COMPARED.index(Compared.CONFIGURED), COMPARED.index(Compared.USUAL))
    return Lengths(
        judged_ms=np.where(is_work, worked_ms, ms),
        expected_ms=np.where(is_work, limit_ms, np.where(is_unknown, configured_ms, usual_ms)),
        compared=np.where(is_work, COMPARED.index(Compared.WORK), of_age),
    )
