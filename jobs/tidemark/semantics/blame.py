"""Splits the age of a window into parts and blames growth.

The age of a window at an operator is the clock when the operator had finished it, less the window's end. The parts add
up to the age. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

HISTORY = 200
"""Windows within the promise that give the usual lengths."""
HISTORY_MS = 86_400_000
"""Windows that ended longer ago do not count as history."""
ENOUGH = 20
"""With fewer windows the usual length is unknown."""


class AgeCause(StrEnum):
    """A part of a window's age in which no operator worked."""

    BOUND = "bound"
    """The source's bound: the wait for records that are out of order."""
    BLOCKING_PARTITION = "blocking_partition"
    """A partition had no record that was new enough.

    It had to get one, or to become idle.
    """
    BACKLOG = "backlog"
    """The record that closed the window waited unread.

    The driver read older records, stood still, or had never run.
    """
    DRIVER_RESTARTED = "driver_restarted"
    """Records waited unread while another driver took over."""
    LATE_PRODUCER = "late_producer"
    """The closing record was written later than its timestamp."""
    TRIGGER = "trigger"
    """A driver waited for its next trigger."""
    WAITING = "waiting"
    """A hop's records waited longer than a trigger for an idle driver."""
    QUEUED = "queued"
    """An operator waited for the journal or another stream of its process."""


HELD_BY_WATERMARK = frozenset({AgeCause.BOUND.value, AgeCause.BLOCKING_PARTITION.value})
"""Causes that delay windows.

They delay records only where these wait for the end of a window.
"""


class AgePart(NamedTuple):
    """The owner of a part of the age.

    It is an operator of a *kind*, or an AgeCause, which is its own kind.
    """

    name: str
    kind: str

    @classmethod
    def of(cls, cause: AgeCause) -> AgePart:
        """Returns the part of *cause*."""
        return cls(cause.value, cause.value)


Spent = Mapping[AgePart, int]
"""The length of each part, ms."""


@dataclass(frozen=True, kw_only=True)
class ClosingBatches:
    """The batch that closed a window, and the batch before it.

    Attributes:
        began_ms: when it began.
        before_began_ms: when the batch before it began; None: there was none.
        before_ended_ms: when the batch before it ended; None: there was none.
        is_unread: the batch before left records of the blocking partition unread.
        has_restarted: records waited for another driver, which ran this batch or began to read the backlog.
        still_from_ms: since when records waited because the driver stood still; None: it did not.
    """

    began_ms: int
    before_began_ms: int | None = None
    before_ended_ms: int | None = None
    is_unread: bool = False
    has_restarted: bool = False
    still_from_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class PartExcess:
    """A part with its length, its usual length and its excess, ms.

    `usual_ms` is None if it is unknown. `usual_share` is the usual share of the window's age.
    """

    part: AgePart
    ms: int
    usual_ms: float | None
    usual_share: float | None
    excess_ms: float


def before_source(
    window_end_ms: int,
    finished_ms: int,
    *,
    bound_ms: int,
    ready_ms: int,
    closing: ClosingBatches,
    trigger_ms: int,
    queued_ms: int,
    source: AgePart,
    busy: AgePart,
) -> dict[AgePart, int]:
    """Splits the age of a window at its source into parts.

    The parts add up to the age.

    Args:
        window_end_ms: end of the window, record time.
        finished_ms: when the source had finished the window.
        bound_ms: the source's bound.
        ready_ms: record time from which on the blocking partition could let the watermark pass the window's end.
        closing: the batch in which the watermark passed it.
        trigger_ms: trigger interval of the topology.
        queued_ms: wait of that batch for other streams of its process, from its beginning.
        source: the part that owns the rest of the time after the batch began.
        busy: the part that owns the time in which the driver was busy with the batch before.
    """
    waiting = AgeCause.DRIVER_RESTARTED if closing.has_restarted else AgeCause.BACKLOG
    idle_part = AgePart.of(waiting if closing.is_unread else AgeCause.LATE_PRODUCER)
    is_waiting = closing.is_unread or closing.has_restarted or closing.still_from_ms is not None
    # Each part ends at its instant, or where the part before it ended if that is later.
    until = [
        (AgePart.of(AgeCause.BOUND), window_end_ms + bound_ms),
        (AgePart.of(AgeCause.BLOCKING_PARTITION), ready_ms),
    ]
    if closing.before_began_ms is not None and closing.before_ended_ms is not None:
        during_before = idle_part if closing.is_unread else busy
        until += [(idle_part, closing.before_began_ms), (during_before, closing.before_ended_ms)]
    if closing.still_from_ms is not None:
        until += [(idle_part, closing.still_from_ms)]
    until += [(AgePart.of(waiting) if is_waiting else idle_part, closing.began_ms - trigger_ms)]
    until += [(AgePart.of(AgeCause.TRIGGER), closing.began_ms)]
    until += [(AgePart.of(AgeCause.QUEUED), closing.began_ms + queued_ms)]
    # One part may own several stretches, which add up.
    spent: Counter[AgePart] = Counter()
    # A window may finish before its end: then the part of the bound is negative, and the sum is still the age.
    now_ms = min(window_end_ms, finished_ms)
    spent[AgePart.of(AgeCause.BOUND)] += now_ms - window_end_ms
    for part, at_ms in until:
        length_ms = max(0, min(at_ms, finished_ms) - now_ms)
        spent[part] += length_ms
        now_ms += length_ms
    spent[source] += finished_ms - now_ms
    return dict(spent)


def share_out(wait: tuple[int, int], worked: Mapping[AgePart, tuple[int, int]], length_ms: int) -> dict[AgePart, int]:
    """Splits *length_ms* of queueing among the operators that worked meanwhile.

    The rest is QUEUED.

    Args:
        wait: the instants between which the operator waited and worked.
        worked: for each operator beside the path, the instants between which it worked in the same driver.
        length_ms: how long the operator waited.
    """
    overlaps = {part: min(wait[1], end) - max(wait[0], start) for part, (start, end) in worked.items()}
    shares: dict[AgePart, int] = {}
    # Operators with the longest overlap come first: they get their share before the time is used up.
    for part, overlap_ms in sorted(overlaps.items(), key=lambda item: (-item[1], item[0])):
        share_ms = max(0, min(overlap_ms, length_ms))
        length_ms -= share_ms
        if share_ms:
            shares[part] = share_ms
    return {**shares, AgePart.of(AgeCause.QUEUED): length_ms}


def excesses(
    spent: Spent,
    kept: Sequence[Spent],
    configured_ms: Mapping[str, int],
    *,
    only: Collection[str] | None = None,
    promised_ms: int = 0,
) -> list[PartExcess]:
    """Returns every part of a window, the largest excess first.

    The usual length of a part is its median over *kept*, windows that kept the promise.

    Args:
        spent: the length of each part.
        kept: the parts of earlier windows within the promise.
        configured_ms: by name of a part, its configured length.
        only: names of the parts that can be blamed; None: all.
        promised_ms: the length for which no part is blamed.
    """
    # With fewer than ENOUGH windows the usual length is unknown, and the configured length takes its place.
    is_known = len(kept) >= ENOUGH
    ages_ms = [sum(each.values()) for each in kept]

    def blamed(part: AgePart, ms: int) -> PartExcess:
        usual_ms = float(median(each.get(part, 0) for each in kept)) if is_known else None
        shares = [each.get(part, 0) / age_ms for each, age_ms in zip(kept, ages_ms, strict=True) if age_ms > 0]
        expected_ms = configured_ms.get(part.name, 0) if usual_ms is None else usual_ms
        # A part within the promise is not blamed, even where it is usually shorter.
        excess_ms = ms - max(expected_ms, promised_ms) if only is None or part.name in only else 0
        return PartExcess(
            part=part,
            ms=ms,
            usual_ms=usual_ms,
            usual_share=median(shares) if is_known and shares else None,
            excess_ms=max(0.0, float(excess_ms)),
        )

    # Of equal excesses the first by name, so that reports of the same window agree.
    return sorted((blamed(part, ms) for part, ms in spent.items()), key=lambda each: (-each.excess_ms, each.part))
