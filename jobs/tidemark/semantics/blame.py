"""Splits the age of a window into parts and blames growth.

The age of a window at an operator is the clock when the operator had finished it, less the window's end. The parts add
up to the age. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
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


class _Lengths:
    """Keeps lengths in order, of which most may be 0."""

    def __init__(self) -> None:
        self._others: list[float] = []

    def add(self, length: float) -> None:
        if length:
            insort(self._others, length)

    def remove(self, length: float) -> None:
        if length:
            del self._others[bisect_left(self._others, length)]

    def median(self, number: int) -> float:
        """Returns the median of *number* lengths; those not added are 0."""
        negative, zeros = bisect_left(self._others, 0), number - len(self._others)

        def at(place: int) -> float:
            if place < negative:
                return self._others[place]
            return 0 if place < negative + zeros else self._others[place - zeros]

        return (at((number - 1) // 2) + at(number // 2)) / 2


class KeptWindows:
    """Earlier windows that kept a promise, with the usual length of each part.

    The usual length is the median; it is unknown with fewer windows than ENOUGH.
    """

    def __init__(self, windows: Iterable[Spent] = ()) -> None:
        self._windows: deque[tuple[Spent, int]] = deque()
        self._ms: dict[AgePart, _Lengths] = defaultdict(_Lengths)
        self._shares: dict[AgePart, _Lengths] = defaultdict(_Lengths)
        self._with_age = 0
        for spent in windows:
            self.add(spent)

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, spent: Spent) -> None:
        """Adds a window."""
        age_ms = sum(spent.values())
        self._windows.append((spent, age_ms))
        self._with_age += age_ms > 0
        for part, ms in spent.items():
            self._ms[part].add(ms)
            if age_ms > 0:
                self._shares[part].add(ms / age_ms)

    def forget_oldest(self) -> None:
        """Removes the window that was added first."""
        spent, age_ms = self._windows.popleft()
        self._with_age -= age_ms > 0
        for part, ms in spent.items():
            self._ms[part].remove(ms)
            if age_ms > 0:
                self._shares[part].remove(ms / age_ms)

    def usual_ms(self, part: AgePart) -> float | None:
        """Returns the usual length of *part*, in ms."""
        return self._ms[part].median(len(self)) if len(self) >= ENOUGH else None

    def usual_share(self, part: AgePart) -> float | None:
        """Returns the usual share of *part* in the age of a window."""
        return self._shares[part].median(self._with_age) if len(self) >= ENOUGH and self._with_age else None


def excesses(
    spent: Spent,
    kept: KeptWindows,
    configured_ms: Mapping[str, int],
    *,
    only: Collection[str] | None = None,
    promised_ms: int = 0,
) -> list[PartExcess]:
    """Returns every part of a window, the largest excess first.

    Args:
        spent: the length of each part.
        kept: windows that kept the promise. With fewer than ENOUGH the configured lengths take the place of the usual.
        configured_ms: by name of a part, its configured length.
        only: names of the parts that can be blamed; None: all.
        promised_ms: the length for which no part is blamed.
    """

    def blamed(part: AgePart, ms: int) -> PartExcess:
        usual_ms = kept.usual_ms(part)
        expected_ms = configured_ms.get(part.name, 0) if usual_ms is None else usual_ms
        # A part within the promise is not blamed, even where it is usually shorter.
        excess_ms = ms - max(expected_ms, promised_ms) if only is None or part.name in only else 0
        return PartExcess(
            part=part,
            ms=ms,
            usual_ms=usual_ms,
            usual_share=kept.usual_share(part),
            excess_ms=max(0.0, float(excess_ms)),
        )

    # Of equal excesses the first by name, so that reports of the same window agree.
    return sorted((blamed(part, ms) for part, ms in spent.items()), key=lambda each: (-each.excess_ms, each.part))
