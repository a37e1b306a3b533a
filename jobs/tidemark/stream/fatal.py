"""Finds the record that kills whoever reads it, by halving what a batch reads: each try is a process of its own.

A record that expands to more than fits into the JVM leaves no error that names it. Once two drivers in a row were
killed with one batch, the next one has other processes read the offsets of that batch, before it does so itself. The
record that alone kills its reader is passed over, and quarantined as `kills_drivers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidemark.control import Control, Heartbeat, StreamState
from tidemark.errors import TidemarkError
from tidemark.spec.topology import SubTopology
from tidemark.stream.parts import Places, Ranges
from tidemark.stream.unread import unread_ranges

log = logging.getLogger("tidemark.stream")

ENOUGH = 2
"""Drivers in a row that were killed with a batch, before one looks for the record: anything can kill a driver once."""
KILLED = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""States of a last heartbeat that mean the driver was killed: one that ends on request leaves another state."""
WITHOUT_JVM = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "Py4JNetworkError")
"""How the reason of a driver begins whose JVM is gone."""


class Unknown(TidemarkError):
    """Raised when a try ended by an error: it says nothing of the records."""


@dataclass(frozen=True)
class Deaths:
    """So many drivers in a row were killed with the planned batch *batch_id* before anything of *ranges* was decided.

    Records of the batch are *passed_over*: per topic, by partition and offset.
    """

    batch_id: int = -1
    times: int = 0
    ranges: Ranges = field(default_factory=dict)
    passed_over: Places = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Deaths:
        """Those that a control folder has *kept*; none if that is nothing."""
        if not kept:
            return cls()
        ranges = {
            topic: {int(number): (start, end) for number, (start, end) in offsets.items()}
            for topic, offsets in kept["ranges"].items()
        }
        places = {topic: [(number, offset) for number, offset in of] for topic, of in kept["passed_over"].items()}
        return cls(**{**kept, "ranges": ranges, "passed_over": places})


def counted(control: Control, sub: SubTopology) -> Deaths:
    """The deaths of drivers with the newest batch of *sub*, that of the last one with them; kept for the next one."""
    kept, before = Deaths.of(control.deaths()), control.heartbeat()
    was_killed = before is not None and _was_killed(before)
    if not was_killed and not kept.times and not kept.passed_over:
        return kept
    batch_id, ranges = unread_ranges(control.home, sub)
    if not ranges:
        return Deaths()
    places = kept.passed_over if kept.batch_id == batch_id else {}
    again = kept.times if (kept.batch_id, kept.ranges) == (batch_id, ranges) else 0
    now = Deaths(batch_id, again + was_killed, ranges, places)
    control.keep_deaths(asdict(now))
    return now


def _was_killed(beat: Heartbeat) -> bool:
    """Whether the driver of *beat*, its last one, was killed with a batch, or its JVM was."""
    if beat.state is StreamState.FAILED:
        return (beat.reason or "").startswith(WITHOUT_JVM)
    return beat.state in KILLED and beat.doing.startswith("batch")


def passed_over(control: Control, deaths: Deaths, kills: Callable[[Ranges], bool]) -> Places | None:
    """The records of the batch of *deaths* that are passed over; one that *kills* whoever reads it joins them.

    None: the batch is read as any other. One that too many drivers were killed with is not, even if it has no such
    record: Kafka's client unpacks what comes behind it, too.
    """
    if deaths.times < ENOUGH:
        return deaths.passed_over or None
    log.warning("%s drivers were killed with batch %s: looking for the record", deaths.times, deaths.batch_id)
    try:
        place = fatal_record(deaths.ranges, kills)
    except Unknown as error:
        log.warning("the record that kills drivers could not be looked for: %s", error)
        return deaths.passed_over
    if place is None:
        log.warning("no record alone kills its reader; is the batch too large for the memory of the driver?")
        return deaths.passed_over
    topic, number, offset = place
    log.error("topic %r, partition %s, offset %s kills who reads it: it is passed over", topic, number, offset)
    places = {**deaths.passed_over, topic: [*deaths.passed_over.get(topic, ()), (number, offset)]}
    control.keep_deaths(asdict(Deaths(deaths.batch_id, 0, deaths.ranges, places)))
    return places


def fatal_record(ranges: Ranges, kills: Callable[[Ranges], bool]) -> tuple[str, int, int] | None:
    """The topic, partition and offset among *ranges* that alone *kills* whoever reads it; None if there is none.

    The whole is tried first, then halves: of n records at most 2 + log2 n tries. Of several it is the first. Where
    every try was killed, one that reads nothing must live: else it is the host that kills.
    """
    first, end = 0, sum(stop - start for offsets in ranges.values() for start, stop in offsets.values())
    if not kills(ranges):
        return None
    was_tried = has_lived = False
    while end - first > 1:
        middle = (first + end) // 2
        was_tried = kills(_within(ranges, first, middle))
        has_lived |= not was_tried
        first, end = (first, middle) if was_tried else (middle, end)
    alone = _within(ranges, first, end)
    if (has_lived and not was_tried and not kills(alone)) or (not has_lived and kills({})):
        return None
    ((topic, offsets),) = alone.items()
    ((number, (offset, _)),) = offsets.items()
    return topic, number, offset


def _within(ranges: Ranges, first: int, end: int) -> Ranges:
    """Of the records in *ranges*, in their order, those from number *first* until *end*."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    before = 0
    for topic, offsets in ranges.items():
        for number, (start, stop) in offsets.items():
            low, high = (min(max(start + at - before, start), stop) for at in (first, end))
            before += stop - start
            if low < high:
                found.setdefault(topic, {})[number] = (low, high)
    return found
