"""What a stream must remember from batch to batch besides its tables' state.

It is small, and every journal entry has all of it. Instants are epoch ms UTC: record time for timestamps and
watermarks, the batch's decision time for `*_at_ms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from tidemark.semantics.idleness import Activity
from tidemark.semantics.skip_rate import Skips


class Sent(NamedTuple):
    """How far a writer that numbers what it sends has come: its highest epoch, and the last of its records in order."""

    epoch: int
    batch: int
    sequence: int


class Marked(NamedTuple):
    """The newest mark of time that a sink sent: decision time of its batch, and what it said."""

    at_ms: int
    watermark_ms: int | None
    idle: bool


@dataclass(frozen=True, kw_only=True)
class PartitionProgress:
    """One input partition: newest record, watermark, when it last had a record, and the offset after that.

    Everything before `done_until_offset` was sent on; what lies between it and `until_offset` waits. `writers` are
    those that number their records (`tidemark-id`), by name. `told_idle` is what its writer said last. `newest_ms` is
    the newest event time that was read, also of a record that waits or is ahead of the clock: that of tombstones.
    `set_back_from_ms` is the time from which it was set back (`tidemark reset-time`), until its writer's marks say an
    earlier one; None: it was not, or they do.
    """

    max_timestamp_ms: int | None = None
    watermark_ms: int | None = None
    active_at_ms: int | None = None
    until_offset: int = 0
    done_until_offset: int = 0
    activity: Activity = Activity.ACTIVE
    writers: Mapping[str, Sent] = field(default_factory=dict)
    told_idle: bool = False
    newest_ms: int | None = None
    set_back_from_ms: int | None = None

    def believes(self, mark_ms: int | None) -> bool:
        """Whether a mark that counts as a record of *mark_ms* is from after its writer's time was set back, too."""
        return self.set_back_from_ms is None or (mark_ms is not None and mark_ms < self.set_back_from_ms)


@dataclass(frozen=True, kw_only=True)
class InputProgress:
    """One source: its partitions, and the watermark that they combine to (None: none yet)."""

    partitions: Mapping[int, PartitionProgress] = field(default_factory=dict)
    watermark_ms: int | None = None
    held_by: str | None = None
    idle: bool = False

    def with_writers(self, writers: Mapping[int, Mapping[str, Sent]]) -> InputProgress:
        """This progress, with the *writers* of each partition."""
        partitions = {
            number: replace(part, writers=writers.get(number, {})) for number, part in self.partitions.items()
        }
        return replace(self, partitions=partitions)


STREAMING = ""
"""Under this name `stay_closed` has streaming windows: no operator is called so."""


@dataclass(frozen=True, kw_only=True)
class StreamProgress:
    """The whole: per source, per operator, and the windows that wait for the watermark.

    It is `idle` when every source that may hold the watermark back is.

    `windows` are the starts of the streaming windows that had records, are not closed and are measured; `uncounted`
    are older ones that are not, by the first and last start of those that follow one another; `records` counts, per
    operator and window start, the records it finished; `skipped` is each operator's idempotent-update-skip total per
    task, and `skipped_lately` has those of the last minute; `marks` are the newest marks of
    time by sink. `resets` are the batches in which time was set back, by the id of who asked for it; `stay_closed` are
    the windows (start, end) that were closed by then and are not passed again yet, per aggregate, and the streaming
    windows under STREAMING. `forgotten` has, per aggregate, the latest end of a window whose states are gone, `ended`
    the same as far as time has gone on since it was set back, and `reopened` the batches in which late records were
    taken in again, by the id of who asked for it. `ahead` is how many batches more than Spark planned there
    were so far: each part of one that was too large is a batch.
    """

    batch_id: int = -1
    decided_at_ms: int | None = None
    inputs: Mapping[str, InputProgress] = field(default_factory=dict)
    watermark_ms: int | None = None
    held_by: str | None = None
    idle: bool = False
    windows: tuple[int, ...] = ()
    uncounted: tuple[tuple[int, int], ...] = ()
    records: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    skipped: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    skipped_lately: Mapping[str, Skips] = field(default_factory=dict)
    marks: Mapping[str, Marked] = field(default_factory=dict)
    resets: Mapping[str, int] = field(default_factory=dict)
    stay_closed: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    reopened: Mapping[str, int] = field(default_factory=dict)
    ahead: int = 0

    @property
    def planned_id(self) -> int:
        """The number that Spark gave to the newest batch, or to that of which it is a part; -1: there is none."""
        return self.batch_id - self.ahead

    def decided_at(self, planned_at_ms: int) -> int:
        """The decision time of the next batch: when it was planned, but never before that of the last batch."""
        return planned_at_ms if self.decided_at_ms is None else max(planned_at_ms, self.decided_at_ms)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        # Many numbers, which `asdict` would copy one by one.
        counts = {"windows": self.windows, "uncounted": self.uncounted, "records": self.records}
        return {**asdict(self.without_windows()), **counts}

    def without_windows(self) -> StreamProgress:
        """The same without the state of windows."""
        return replace(self, windows=(), uncounted=(), records={})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> StreamProgress:
        """The inverse of `to_json`, after a trip through JSON text."""
        inputs = {name: _input(value) for name, value in content["inputs"].items()}
        records = {name: {int(k): n for k, n in counts.items()} for name, counts in content["records"].items()}
        skipped = {name: {int(task): n for task, n in counts.items()} for name, counts in content["skipped"].items()}
        counted = {"records": records, "skipped": skipped, "windows": tuple(content["windows"])}
        counted |= {"uncounted": tuple((first, last) for first, last in content.get("uncounted", ()))}
        lately = content.get("skipped_lately", {}).items()
        counted |= {"skipped_lately": {name: tuple((at, task, n) for at, task, n in of) for name, of in lately}}
        marks = {name: Marked(*mark) for name, mark in content.get("marks", {}).items()}
        closed = {name: tuple((start, end) for start, end in of) for name, of in content.get("stay_closed", {}).items()}
        # Older versions kept no `ended`: it is the same unless time was set back.
        ended = content.get("ended", {} if content.get("resets") else content.get("forgotten", {}))
        of_windows = {"stay_closed": closed, "ended": ended}
        return cls(**{**content, **counted, **of_windows, "inputs": inputs, "marks": marks})

    def same_as(self, other: StreamProgress) -> bool:
        """Whether nothing moved but the batch and its decision time: such a batch writes nothing."""
        return replace(self, batch_id=0, decided_at_ms=0) == replace(other, batch_id=0, decided_at_ms=0)


def _input(content: Mapping[str, Any]) -> InputProgress:
    partitions = {int(number): _partition(value) for number, value in content["partitions"].items()}
    return InputProgress(**{**content, "partitions": partitions})


def _partition(content: Mapping[str, Any]) -> PartitionProgress:
    writers = {name: Sent(*sent) for name, sent in content.get("writers", {}).items()}
    newest = {"newest_ms": content.get("newest_ms", content["max_timestamp_ms"])}  # older versions kept no other
    return PartitionProgress(**{**content, **newest, "activity": Activity(content["activity"]), "writers": writers})
