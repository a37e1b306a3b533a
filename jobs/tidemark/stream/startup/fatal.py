"""Finds the record that kills its reader, by bisection of a batch.

A record that expands to more than fits into the JVM leaves no error that names it. Once two drivers in a row were
killed with the same batch, the next driver has other processes read the offsets of that batch before it does so itself;
each try is a separate process. The record that alone kills its reader is skipped, and quarantined as `kills_drivers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import TidemarkError
from tidemark.model.topology import SubTopology
from tidemark.stream.read.parts import Ranges, RecordsByTopic
from tidemark.stream.startup.unread import unread_ranges

log = logging.getLogger("tidemark.stream")

ENOUGH = 2
"""Deaths in a row with a batch before the record is searched.

Anything can kill a driver once.
"""
KILLED = frozenset({StreamState.STARTING, StreamState.RUNNING})
"""States of the last heartbeat of a driver that was killed.

A driver that ends on request leaves another state.
"""
WITHOUT_JVM = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "Py4JNetworkError")
"""Openings of the reason for which a driver without a JVM failed."""


class TryInconclusive(TidemarkError):
    """Raised when a try failed with an error, which proves nothing."""


@dataclass(frozen=True)
class Deaths:
    """Drivers in a row that were killed with the same batch.

    Attributes:
        batch_id: Spark's number of the batch.
        times: how many drivers were killed before anything of `ranges` was decided.
        ranges: the offsets, per topic and partition, that the batch has yet to read.
        passed_over: records of the batch that are skipped: per topic, by partition and offset.
    """

    batch_id: int = -1
    times: int = 0
    ranges: Ranges = field(default_factory=dict)
    passed_over: RecordsByTopic = field(default_factory=dict)

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Deaths:
        """Reads the deaths that a control folder has *kept*, none if empty."""
        if not kept:
            return cls()
        ranges: dict[str, dict[int, tuple[int, int]]] = {}
        for topic, offsets in kept["ranges"].items():
            # JSON has texts for the numbers of partitions, and lists for tuples.
            ranges[topic] = {int(number): (start, end) for number, (start, end) in offsets.items()}
        places = {topic: [*map(tuple, records)] for topic, records in kept["passed_over"].items()}
        return cls(**{**kept, "ranges": ranges, "passed_over": places})


def count_deaths(control: Control, sub: SubTopology, before: Heartbeat | None) -> Deaths:
    """Counts drivers that were killed with the newest batch of *sub*.

    The last driver, whose heartbeat is *before*, is included. The result is kept in *control* for the next driver.
    """
    kept = control.deaths(Deaths.of) or Deaths()
    was_killed = before is not None and _was_killed(before)
    if not was_killed and not kept.times and not kept.passed_over:
        return kept
    batch_id, ranges = unread_ranges(control.home, sub)
    # Without unread records no record can have killed the driver.
    if not ranges:
        return Deaths()
    places = kept.passed_over if kept.batch_id == batch_id else {}
    # A driver that decided a part of the batch made progress: deaths count from 0 again.
    again = kept.times if (kept.batch_id, kept.ranges) == (batch_id, ranges) else 0
    now = Deaths(batch_id, again + was_killed, ranges, places)
    control.keep_deaths(asdict(now))
    return now


def _was_killed(beat: Heartbeat) -> bool:
    """Returns True if a driver or its JVM was killed.

    A driver only counts if it was killed during a batch; its JVM always counts. *beat* is the driver's last heartbeat.
    """
    if beat.state is StreamState.FAILED:
        # The driver outlived its JVM, which a record may have killed.
        return (beat.reason or "").startswith(WITHOUT_JVM)
    # A driver that was killed between batches read no record then.
    return beat.state in KILLED and beat.doing.startswith("batch")


def records_to_skip(control: Control, deaths: Deaths, kills: Callable[[Ranges], bool]) -> RecordsByTopic | None:
    """Returns the records of the batch of *deaths* to skip.

    After ENOUGH deaths it first searches for the record that *kills* its reader, and keeps it in *control*.

    Returns: Per topic, by partition and offset. None: the batch is read like any other.
    """
    # After ENOUGH deaths records are read one by one even if none is found, because Kafka's client also unpacks records
    # after those that it is to read.
    if deaths.times < ENOUGH:
        return deaths.passed_over or None
    log.warning("%s drivers were killed in batch %s: searching for the record", deaths.times, deaths.batch_id)
    try:
        place = fatal_record(deaths.ranges, kills)
    except TryInconclusive as error:
        log.warning("cannot search for the record that kills drivers: %s", error)
        return deaths.passed_over
    if place is None:
        log.warning("no single record kills its reader; the batch may be too large for the driver's memory")
        return deaths.passed_over
    topic, number, offset = place
    log.error("topic %r, partition %s, offset %s kills its reader: skipping it", topic, number, offset)
    places = {**deaths.passed_over, topic: [*deaths.passed_over.get(topic, ()), (number, offset)]}
    # Deaths count from 0 again: another record may kill drivers, too.
    control.keep_deaths(asdict(Deaths(deaths.batch_id, 0, deaths.ranges, places)))
    return places


def fatal_record(ranges: Ranges, kills: Callable[[Ranges], bool]) -> tuple[str, int, int] | None:
    """Finds the record in *ranges* that alone *kills* its reader.

    Of several such records it finds the first.

    Returns:
        Topic, partition and offset; None if there is no such record.
    """
    places = chain.from_iterable(offsets.values() for offsets in ranges.values())
    first, end = 0, sum(stop - start for start, stop in places)
    # All records are tried first, then halves: at most 2 + log2 n tries for n records.
    if not kills(ranges):
        return None
    was_tried = has_lived = False
    while end - first > 1:
        middle = (first + end) // 2
        was_tried = kills(_within(ranges, first, middle))
        has_lived |= not was_tried
        first, end = (first, middle) if was_tried else (middle, end)
    alone = _within(ranges, first, end)
    # The record was not tried alone if the last try, of the half before it, survived.
    # If every try was killed, a try that reads nothing must survive: otherwise the host kills processes.
    if (has_lived and not was_tried and not kills(alone)) or (not has_lived and kills({})):
        return None
    ((topic, offsets),) = alone.items()
    ((number, (offset, _)),) = offsets.items()
    return topic, number, offset


def _within(ranges: Ranges, first: int, end: int) -> Ranges:
    """Returns the part of *ranges* with the records *first* until *end*.

    Records count from 0 in the order of *ranges*; *end* is exclusive.
    """
    within: dict[str, dict[int, tuple[int, int]]] = {}
    before = 0
    for topic, offsets in ranges.items():
        for number, (start, stop) in offsets.items():
            low, high = (min(max(start + at - before, start), stop) for at in (first, end))
            before += stop - start
            if low < high:
                within.setdefault(topic, {})[number] = (low, high)
    return within
