"""Computes what a topology must have written whose file changes between its drivers.

It shares no code with the engine. It is told which offsets a batch was planned to read, and the instant for which it
was decided; all else follows from the records and from what a person wrote into the file. Instants are epoch ms.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from support.small_spark import Read, Record

T = TypeVar("T")
BOUND_MS = 1_000


@dataclass
class Partition:
    """A partition of a source: up to where it was read, and the records that wait for other partitions."""

    read_to: int
    heard_at_ms: int
    activity: str = "active"
    newest_ms: int | None = None
    waiting: list[Record] = field(default_factory=list)

    @property
    def watermark_ms(self) -> int | None:
        return None if self.newest_ms is None else self.newest_ms - BOUND_MS - 1


@dataclass
class Reading:
    """A source as the file has it, and what the stream has of it.

    `starting` is its `starting_offsets`, and `starts` the offsets at which it begins; empty: it begins with the
    earliest record. It has no partitions before its first batch. `listed_as` is its name at the newest start of a
    driver, and `followed` the topic; None: there was none with it.
    """

    name: str
    topic: str
    was: str | None = None
    starting: str | int | None = None
    idle_after_ms: int | None = None
    starts: dict[int, int] = field(default_factory=dict)
    listed_as: str | None = None
    followed: str | None = None
    partitions: dict[int, Partition] = field(default_factory=dict)
    watermark_ms: int | None = None
    is_idle: bool = False

    @property
    def waiting(self) -> int:
        """The number of records that wait."""
        return sum(len(part.waiting) for part in self.partitions.values())

    def begin(self, topic: str, starting: str | int | None) -> None:
        """Lets it begin with *topic*, whatever it had read."""
        self.topic, self.starting, self.starts, self.partitions = topic, starting, {}, {}
        self.watermark_ms, self.is_idle = None, False


@dataclass
class Results:
    """What the operators of a topology must have; operators that are not in the file have nothing.

    Attributes:
        window_ms: the length of windows.
        done: the newest batch.
        kept: each record that was sent on, with its batch.
        totals: by key, the numbers that count since the operator began.
        counts: the number of records by key since the operator began; None: the file does not have it.
        open_windows: by key and start, the number of records.
        closed: key, start and number of records of each closed window.
        watermark_ms: that of the stream.
        watermarks_ms: the same after each batch.
        reached_ms: by batch and source, the watermark of the source.
        outcomes: by batch and operator, what became of its records.
    """

    window_ms: int
    done: int = -1
    kept: list[tuple[int, int]] = field(default_factory=list)
    totals: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] | None = field(default_factory=Counter)
    open_windows: Counter[tuple[str, int]] = field(default_factory=Counter)
    closed: list[tuple[str, int, int]] = field(default_factory=list)
    watermark_ms: int | None = None
    watermarks_ms: dict[int, int | None] = field(default_factory=dict)
    reached_ms: dict[tuple[int, str], int | None] = field(default_factory=dict)
    outcomes: dict[tuple[int, str], Counter[str]] = field(default_factory=dict)

    def batch(
        self,
        batch_id: int,
        decided_at_ms: int,
        sources: Iterable[Reading],
        reads: Mapping[str, Read],
        logs: Mapping[str, list[list[Record]]],
        *,
        max_drift_ms: int | None,
    ) -> None:
        """Decides a batch that was planned to read *reads* of *sources*, which come in the order of the file.

        *logs* are the records of all topics by then.
        """
        sources = [*sources]
        parts = [part for source in sources for part in source.partitions.values()]
        reported = [part.watermark_ms for part in parts if part.activity != "idle" and part.watermark_ms is not None]
        allowed_ms = min(reported) + max_drift_ms if reported and max_drift_ms is not None else None
        passed = [
            record
            for source in sources
            for record in self._take_in(batch_id, source, reads.get(source.name), logs, decided_at_ms, allowed_ms)
        ]
        before_ms = self.watermark_ms
        self._move(sources)
        self._calculate(batch_id, passed, before_ms)
        self.done = batch_id

    def _take_in(
        self,
        batch_id: int,
        source: Reading,
        read: Read | None,
        logs: Mapping[str, list[list[Record]]],
        decided_at_ms: int,
        allowed_ms: int | None,
    ) -> list[Record]:
        passed: list[Record] = []
        count = self.outcomes[batch_id, source.name] = Counter()
        for number, records in enumerate(logs[source.topic]):
            part = source.partitions.get(number)
            if part is None:
                part = source.partitions[number] = Partition(source.starts.get(number, 0), decided_at_ms)
            until = part.read_to
            if read is not None:
                # What goes on is read from exactly where it was.
                assert read.start[number] == part.read_to, (source.name, number, read, part.read_to)
                until = read.end[number]
            fresh = records[part.read_to : until]
            count.update(records_in=len(fresh), held_before=len(part.waiting))
            waiting, reached_ms = list[Record](), part.newest_ms
            for record in [*part.waiting, *fresh]:
                # A record is judged by what its partition had reached before it.
                is_ahead = None not in (reached_ms, allowed_ms) and reached_ms - BOUND_MS - 1 > allowed_ms  # type: ignore[operator]
                (waiting if is_ahead else passed).append(record)
                if not is_ahead:
                    part.newest_ms = _later(part.newest_ms, record.at_ms)
                reached_ms = _later(reached_ms, record.at_ms)
            part.waiting, part.read_to = waiting, until
            count["held_after"] += len(waiting)
            if fresh:
                part.heard_at_ms, part.activity = decided_at_ms, "active"
            elif len(records) > until or waiting:
                part.activity = "backlogged"
            elif source.idle_after_ms is not None and decided_at_ms - part.heard_at_ms > source.idle_after_ms:
                part.activity = "idle"
            else:
                part.activity = "active"
        count["passed"] = len(passed)
        source.watermark_ms, source.is_idle = _lowest(
            [(part.watermark_ms, part.activity == "idle") for part in source.partitions.values()], source.watermark_ms
        )
        self.reached_ms[batch_id, source.name] = source.watermark_ms
        return passed

    def _move(self, sources: list[Reading]) -> None:
        inputs = [(source.watermark_ms, source.is_idle) for source in sources]
        # An input that is behind, because it has begun or was idle, holds nothing back until it has caught up.
        aligned = [
            (at_ms, idle) for at_ms, idle in inputs if not idle and _later(at_ms, self.watermark_ms) == at_ms
        ]  # fmt: skip
        self.watermark_ms, _ = _lowest(aligned or inputs, self.watermark_ms)

    def _calculate(self, batch_id: int, passed: list[Record], before_ms: int | None) -> None:
        self.watermarks_ms[batch_id] = self.watermark_ms
        self.outcomes[batch_id, "kept"] = Counter(records_in=len(passed), passed=len(passed))
        of_windows = self.outcomes[batch_id, "windows"] = Counter(held_before=len(self.open_windows))
        for record in passed:
            self.kept.append((record.n, batch_id))
            self.totals[record.id].append(record.n)
            if self.counts is not None:
                self.counts[record.id] += 1
            start_ms = record.at_ms // self.window_ms * self.window_ms
            is_late = self._is_closed(start_ms, before_ms)
            of_windows.update(records_in=1, late=is_late)
            if not is_late:
                of_windows["superseded"] += (record.id, start_ms) in self.open_windows
                self.open_windows[record.id, start_ms] += 1
        for (id_, start_ms), n in [*self.open_windows.items()]:
            if self._is_closed(start_ms, self.watermark_ms):
                self.closed.append((id_, start_ms, n))
                of_windows["emitted"] += 1
                del self.open_windows[id_, start_ms]
        of_windows["held_after"] = len(self.open_windows)

    def _is_closed(self, start_ms: int, watermark_ms: int | None) -> bool:
        return watermark_ms is not None and start_ms + self.window_ms - 1 <= watermark_ms


def _later(one_ms: int | None, other_ms: int | None) -> int | None:
    return max((at_ms for at_ms in (one_ms, other_ms) if at_ms is not None), default=None)


def _lowest(parts: list[tuple[int | None, bool]], was_ms: int | None) -> tuple[int | None, bool]:
    """Returns the lowest watermark of those *parts* that are not idle, or else the highest; and whether all are idle.

    It never goes back behind *was_ms*.
    """
    awake = [at_ms for at_ms, is_idle in parts if not is_idle]
    if awake:
        known = [at_ms for at_ms in awake if at_ms is not None]
        return (_later(was_ms, min(known)) if len(known) == len(awake) else was_ms), False
    return _later(was_ms, max((at_ms for at_ms, _ in parts if at_ms is not None), default=None)), True
