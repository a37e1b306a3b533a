"""Which part of a window's age broke a promise: parts that add up to the age, and those that grew.

The age of a window at an operator is when the operator had finished the window, less the window's end. Lengths are ms,
instants epoch ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import NamedTuple

HISTORY = 200
"""Windows that kept the promise, from which the usual length of a part is taken."""
HISTORY_MS = 86_400_000
"""No window that ended longer ago is among them."""
ENOUGH = 20
"""Fewer windows say nothing of what is usual."""


class AgeCause(StrEnum):
    """A part of a window's age in which no operator worked."""

    BOUND = "bound"
    """The source's bound: how long it waits for records that are out of order."""
    BLOCKING_PARTITION = "blocking_partition"
    """A partition had no record that was new enough, or had to become idle first."""
    BACKLOG = "backlog"
    """The record that closed the window waited unread: the driver read older ones, stood still, or had never run."""
    DRIVER_RESTARTED = "driver_restarted"
    """That record waited unread, or the records of a hop did, while a driver took the place of another."""
    LATE_PRODUCER = "late_producer"
    """That record was written later than its timestamp says."""
    TRIGGER = "trigger"
    """A driver waited for its next trigger."""
    WAITING = "waiting"
    """A hop's records waited for the next driver longer than its trigger, and the driver was not busy."""
    QUEUED = "queued"
    """An operator waited for the journal."""


HELD_BY_WATERMARK = frozenset({AgeCause.BOUND.value, AgeCause.BLOCKING_PARTITION.value})
"""What delays windows, and records only where they wait for the end of a window."""


class Part(NamedTuple):
    """The owner of a part of the age: an operator of a *kind*, or an AgeCause, which is its own kind."""

    name: str
    kind: str

    @classmethod
    def of(cls, cause: AgeCause) -> Part:
        """The part of *cause*."""
        return cls(cause.value, cause.value)


Spent = Mapping[Part, int]
"""The length of each part, ms."""


@dataclass(frozen=True, kw_only=True)
class Closing:
    """The batch that closed a window, and what was known before it.

    It began at `began_ms`. The one before it ran from `before_began_ms` to `before_ended_ms`; None: there is none.
    `is_unread`: that one left records of the blocking partition unread. `has_restarted`: records waited for another
    driver, which ran this batch or began to read what had waited. `still_from_ms`: from then on they waited for the
    driver, which stood still; None: it did not.
    """

    began_ms: int
    before_began_ms: int | None = None
    before_ended_ms: int | None = None
    is_unread: bool = False
    has_restarted: bool = False
    still_from_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """The length of a part, its usual length (None: not known), and its excess, ms.

    `usual_share` is the usual share of the window's age.
    """

    part: Part
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
    closing: Closing,
    trigger_ms: int,
    source: Part,
    busy: Part,
) -> dict[Part, int]:
    """What the age of a window at its source was spent on; the parts add up to the age.

    Args:
        window_end_ms: record time.
        finished_ms: when the source had finished the window.
        bound_ms: of the source.
        ready_ms: record time from which on the blocking partition could let the watermark pass the window's end.
        closing: the batch in which it did.
        trigger_ms: of the topology.
        source: gets the time after the batch began.
        busy: gets the time in which the driver was busy with the batch before.
    """
    waiting = AgeCause.DRIVER_RESTARTED if closing.has_restarted else AgeCause.BACKLOG
    left = Part.of(waiting if closing.is_unread else AgeCause.LATE_PRODUCER)
    is_waiting = closing.is_unread or closing.has_restarted or closing.still_from_ms is not None
    until = [(Part.of(AgeCause.BOUND), window_end_ms + bound_ms), (Part.of(AgeCause.BLOCKING_PARTITION), ready_ms)]
    if closing.before_began_ms is not None and closing.before_ended_ms is not None:
        until += [(left, closing.before_began_ms), (left if closing.is_unread else busy, closing.before_ended_ms)]
    if closing.still_from_ms is not None:
        until += [(left, closing.still_from_ms)]
    until += [(Part.of(waiting) if is_waiting else left, closing.began_ms - trigger_ms)]
    until += [(Part.of(AgeCause.TRIGGER), closing.began_ms)]
    spent: Counter[Part] = Counter()
    now_ms = min(window_end_ms, finished_ms)
    spent[Part.of(AgeCause.BOUND)] += now_ms - window_end_ms
    for part, at_ms in until:
        length_ms = max(0, min(at_ms, finished_ms) - now_ms)
        spent[part] += length_ms
        now_ms += length_ms
    spent[source] += finished_ms - now_ms
    return dict(spent)


def shared_out(wait: tuple[int, int], worked: Mapping[Part, tuple[int, int]], length_ms: int) -> dict[Part, int]:
    """Who worked while an operator was queued for *length_ms*; the rest is QUEUED.

    Args:
        wait: the instants between which the operator waited and worked.
        worked: those between which each operator beside the path worked in the same driver.
        length_ms: how long the operator waited.
    """
    overlaps = {part: min(wait[1], end) - max(wait[0], start) for part, (start, end) in worked.items()}
    found: dict[Part, int] = {}
    for part, overlap_ms in sorted(overlaps.items(), key=lambda of: (-of[1], of[0])):
        found[part] = max(0, min(overlap_ms, length_ms))
        length_ms -= found[part]
    return {**{part: ms for part, ms in found.items() if ms}, Part.of(AgeCause.QUEUED): length_ms}


def grown(
    spent: Spent,
    kept: Sequence[Spent],
    configured_ms: Mapping[str, int],
    *,
    only: Collection[str] | None = None,
    promised_ms: int = 0,
) -> list[Blamed]:
    """Every part of a window, those first that were longest beyond what is usual.

    Usual is the median over *kept*, windows that kept the promise. With fewer than ENOUGH of them it is not known, and
    what is *configured_ms* for a part, by name, takes its place. Parts that *only* does not name are to blame for
    nothing, and no part is for the first *promised_ms* of its length.
    """
    is_known = len(kept) >= ENOUGH
    ages_ms = [sum(each.values()) for each in kept]

    def blamed(part: Part, ms: int) -> Blamed:
        usual_ms = float(median(each.get(part, 0) for each in kept)) if is_known else None
        shares = [each.get(part, 0) / age_ms for each, age_ms in zip(kept, ages_ms, strict=True) if age_ms > 0]
        expected_ms = configured_ms.get(part.name, 0) if usual_ms is None else usual_ms
        excess_ms = ms - max(expected_ms, promised_ms) if only is None or part.name in only else 0
        return Blamed(
            part=part,
            ms=ms,
            usual_ms=usual_ms,
            usual_share=median(shares) if is_known and shares else None,
            excess_ms=max(0.0, float(excess_ms)),
        )

    return sorted((blamed(part, ms) for part, ms in spent.items()), key=lambda each: (-each.excess_ms, each.part))
