"""Divides the ages of windows into parts, and finds culprits.

It also finds the windows that kept their promises.

Every promised operator is judged on its own path, and so is the leaf of the critical path. The rules are those of
`semantics.blame`. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import polars as pl
import polars.selectors as cs

from tidemark.collecting import names_in
from tidemark.kernels.reports.restarts import Restart
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.reports.paths.batch_facts import BatchFacts, Blocker
from tidemark.reports.paths.path_facts import Row
from tidemark.reports.promises import Promises, waits_for_windows
from tidemark.semantics.blame import (
    HELD_BY_WATERMARK,
    HISTORY,
    HISTORY_MS,
    AgeCause,
    AgePart,
    KeptWindows,
    Spent,
    before_source,
    excesses,
    share_out,
)

WindowVerdicts = Mapping[tuple[str, int], bool]
"""True if records of a window broke an operator's promise.

Keys are the operator and the start of the window, epoch ms.
"""
FINISHED = ("ewt_ms", "began_ms", "skew_ms", "batch_id")
STEP = ("operator", "kind", "sub_topology", "slowest_upstream", "latency_ms", "waited_ms", "queued_ms", "worked_ms")


class OperatorWork(NamedTuple):
    """The work of an operator for one window, and its batch."""

    operator: str
    kind: str
    sub_topology: str
    slowest_upstream: str | None
    latency_ms: int | None
    waited_ms: int | None
    queued_ms: int | None
    worked_ms: int | None
    ewt_ms: int
    began_ms: int | None
    skew_ms: int | None
    batch_id: int

    @property
    def part(self) -> AgePart:
        """The part of the age that is its work."""
        return AgePart(self.operator, self.kind)


@dataclass(frozen=True, kw_only=True)
class Age:
    """The age of a window at an operator, and its parts.

    Attributes:
        spent: length of each part, ms.
        total_ms: the whole age.
        finished_ms: when the operator had finished the window.
        blocker: the partition that let the window close last.
        restart: cause and description of a restart or standstill on the way, if any.
        queued_behind: streams that drivers on the way waited for, if any.
        drivers: number of drivers on the way.
    """

    spent: Spent
    total_ms: int
    finished_ms: int
    blocker: Blocker
    restart: tuple[AgeCause, str] | None
    queued_behind: str | None
    drivers: int

    def input(self, kind: str) -> str | None:
        """Returns what a part of that *kind* waited for; None: nothing."""
        if self.restart and kind == self.restart[0]:
            return self.restart[1]
        if kind == AgeCause.QUEUED:
            return self.queued_behind
        return self.blocker.input if kind in WAITED_FOR else None


class History:
    """Collects the newest windows that kept the promise of each operator.

    *stored* are rows of window_parts.
    """

    def __init__(self, stored: pl.DataFrame) -> None:
        self._subjects: dict[str, _Subject] = defaultdict(_Subject)
        rows = stored.with_columns(cs.datetime().dt.epoch("ms")).sort("window_end", "subject")
        columns = ("subject", "window_end", "operator", "kind", "ms")
        for (subject, end_ms), of in groupby(rows.select(columns).iter_rows(), key=lambda row: row[:2]):
            self.add(subject, end_ms, {AgePart(name, kind): ms for _, _, name, kind, ms in of})

    def add(self, subject: str, end_ms: int, spent: Spent) -> None:
        """Adds a window that kept the promise of *subject*.

        It ends at *end_ms*, epoch ms, and not before one that was added earlier.
        """
        self._subjects[subject].later.append((end_ms, spent))

    def before(self, subject: str, end_ms: int) -> KeptWindows:
        """Returns the windows with which one that ends at *end_ms* is compared.

        A later call may not ask for an earlier end.
        """
        of = self._subjects[subject]
        while of.later and of.later[0][0] < end_ms:
            kept_ms, spent = of.later.popleft()
            of.ends_ms.append(kept_ms)
            of.kept.add(spent)
        while of.ends_ms and (len(of.ends_ms) > HISTORY or of.ends_ms[0] < end_ms - HISTORY_MS):
            of.ends_ms.popleft()
            of.kept.forget_oldest()
        return of.kept


@dataclass
class _Subject:
    """Kept windows of one operator, their ends, and those that come later."""

    kept: KeptWindows = field(default_factory=KeptWindows)
    ends_ms: deque[int] = field(default_factory=deque)
    later: deque[tuple[int, Spent]] = field(default_factory=deque)


class WindowParts:
    """Finds the parts of the ages of windows.

    Args:
        topology: whose windows they are.
        promises: about its windows.
        facts: about its batches.
        judged: windows whose records were compared with the promises.
        kept: earlier windows that kept a promise. Windows that do so are added.
    """

    def __init__(
        self, topology: Topology, promises: Promises, facts: BatchFacts, judged: WindowVerdicts, kept: History
    ) -> None:
        self._topology, self._promises, self._facts, self._judged = topology, promises, facts, judged
        self._kept = kept
        self._promised = sorted({*promises.records, *promises.work_ms} & set(topology.operators))
        self._waits = {name: waits_for_windows(name, topology) for name in topology.operators}

    def rows(self, steps: pl.DataFrame, leaves: Mapping[tuple[int, int], str], finished: pl.DataFrame) -> Iterator[Row]:
        """Yields rows of window_parts, oldest window first.

        Args:
            steps: rows of critical_path_steps.
            leaves: of the critical paths, by start and end of the window.
            finished: when operators had finished the windows, as in Paths.
        """
        for (start_ms, end_ms), by_operator in _windows(steps, finished):
            leaf = leaves.get((start_ms, end_ms))
            for subject in sorted({*self._promised, *([leaf] if leaf else [])}):
                age = self._age(subject, end_ms, by_operator)
                if age is not None:
                    yield from self._of_subject(subject, start_ms, end_ms, age, by_operator[subject].worked_ms)

    def is_over(self, subject: str, start_ms: int, worked_ms: int | None) -> bool | None:
        """Returns True if a window broke a promise of *subject*.

        None: there is no promise.
        """
        is_late = self._judged.get((subject, start_ms), False)
        return self._promises.are_broken(subject, is_late=is_late, worked_ms=worked_ms)

    def _of_subject(self, subject: str, start_ms: int, end_ms: int, age: Age, worked_ms: int | None) -> Iterator[Row]:
        over, kept = self.is_over(subject, start_ms, worked_ms), self._kept.before(subject, end_ms)
        by_records = self._judged.get((subject, start_ms), False)
        # Records are late because of any part on their way, and work is too long because of the subject only.
        blamed = excesses(
            age.spent,
            kept,
            self._configured_ms(age),
            only=self._candidates(subject, age) if by_records else {subject},
            promised_ms=0 if by_records else self._promises.work_ms.get(subject, 0),
        )
        if over is False:
            self._kept.add(subject, end_ms, age.spent)
        for each in blamed:
            # The bound has a row even if it took no time.
            if each.ms or each.part.kind == AgeCause.BOUND:
                yield {
                    "topology": self._topology.name, "window_start": start_ms, "window_end": end_ms,
                    "subject": subject, "operator": each.part.name, "kind": each.part.kind,
                    "input": age.input(each.part.kind),
                    "ms": each.ms, "age_ms": age.total_ms, "finished_at": age.finished_ms, "over_sla": over,
                    "usual_ms": each.usual_ms, "usual_share": each.usual_share,
                    "excess_ms": each.excess_ms if over else None, "no_history": each.usual_ms is None,
                }  # fmt: skip

    def _candidates(self, subject: str, age: Age) -> Collection[str]:
        """Returns the names of parts that can delay records of *subject*."""
        # The watermark delays records only where they wait for the end of a window.
        return {*names_in(age.spent)} - (frozenset() if self._waits[subject] else HELD_BY_WATERMARK)

    def _configured_ms(self, age: Age) -> dict[str, int]:
        source = age.blocker.source
        return {
            **self._promises.work_ms,
            AgeCause.BOUND: source.bound_ms,
            AgeCause.BLOCKING_PARTITION: source.idle_after_ms or 0,
            # Each driver on the way may wait for a trigger.
            AgeCause.TRIGGER: self._topology.trigger_ms * age.drivers,
        }

    def _age(self, subject: str, end_ms: int, by_operator: Mapping[str, OperatorWork]) -> Age | None:
        """Returns the age of a window at *subject*.

        None: an operator on the way is not measured yet.
        """
        walk = _walk(subject, by_operator)
        source = self._topology.operators.get(walk[-1].operator) if walk else None
        if not isinstance(source, Source):
            return None
        # The walk goes from the subject to its source.
        first = walk[-1]
        blocker = self._facts.blocker(self._topology.sub_topology(first.sub_topology), source, first.batch_id, end_ms)
        spent = Counter(self._before_source(first, end_ms, blocker, by_operator))
        for each in walk:
            spent.update(self._at_operator(each, walk, by_operator))
        total_ms = first.ewt_ms - end_ms + sum(each.latency_ms or 0 for each in walk[:-1])
        return Age(
            spent=spent,
            total_ms=total_ms,
            finished_ms=end_ms + total_ms,
            blocker=blocker,
            restart=self._restarted(walk, blocker),
            queued_behind=self._queued_behind(walk),
            drivers=len({each.sub_topology for each in walk}),
        )

    def _restarted(self, walk: list[OperatorWork], blocker: Blocker) -> tuple[AgeCause, str] | None:
        """Finds a driver on the way that restarted or stood still.

        Returns the cause, and a text with its time and the number of records that waited. None: there is none.
        """
        # Of several drivers it is the one next to the source: those behind it waited for it.
        for each in reversed(walk):
            of_source = blocker if each is walk[-1] else None
            restart = self._facts.restart(each.sub_topology, each.batch_id, of_source)
            if restart is not None:
                return _cause(restart), f"driver of {each.sub_topology}: {restart.seen}"
        return None

    def _queued_behind(self, walk: list[OperatorWork]) -> str | None:
        """Names the streams that the drivers on the way waited for.

        None: they waited for none.
        """
        behind = [self._facts.queued(each.sub_topology, each.batch_id)[1] for each in walk]
        return ", ".join(dict.fromkeys(name for name in behind if name)) or None

    def _before_source(
        self, first: OperatorWork, end_ms: int, blocker: Blocker, by_operator: Mapping[str, OperatorWork]
    ) -> dict[AgePart, int]:
        own_ms = first.ewt_ms - (first.latency_ms or 0)
        began_ms = own_ms if first.began_ms is None else first.began_ms
        return before_source(
            end_ms,
            own_ms,
            bound_ms=blocker.source.bound_ms,
            ready_ms=blocker.ready_ms,
            closing=self._facts.closing(
                first.sub_topology, first.batch_id, blocker, began_ms=began_ms, skew_ms=first.skew_ms or 0
            ),
            trigger_ms=self._topology.trigger_ms,
            queued_ms=self._facts.queued(first.sub_topology, first.batch_id)[0],
            source=first.part,
            busy=_occupant(first.sub_topology, by_operator),
        )

    def _at_operator(
        self, own: OperatorWork, walk: list[OperatorWork], by_operator: Mapping[str, OperatorWork]
    ) -> Counter[AgePart]:
        """Divides the latency of one operator on the way into parts, ms."""
        spent = Counter({own.part: own.worked_ms or 0})
        if own.waited_ms:
            spent.update(self._waited(own, own.waited_ms, by_operator))
        if own.queued_ms:
            beside: dict[AgePart, tuple[int, int]] = {}
            for other in by_operator.values():
                if other.sub_topology == own.sub_topology and other not in walk:
                    beside[other.part] = other.ewt_ms - (other.worked_ms or 0), other.ewt_ms
            # It was queued between the beginning of its batch and its EWT.
            wait = (own.ewt_ms - (own.latency_ms or 0) + (own.waited_ms or 0), own.ewt_ms)
            spent.update(share_out(wait, beside, own.queued_ms))
        return spent

    def _waited(self, own: OperatorWork, waited_ms: int, by_operator: Mapping[str, OperatorWork]) -> Counter[AgePart]:
        """Divides the wait of a hop's reader into parts, ms.

        Its driver was busy with the batch before, or waited for a trigger.
        """
        from_ms = own.ewt_ms - (own.latency_ms or 0)
        before = self._facts.before(own.sub_topology, own.batch_id)
        busy_ms = 0
        if before is not None:
            # Batches are by their driver's clock, and steps by the clock of all hosts.
            began_ms, ended_ms = (at + (own.skew_ms or 0) for at in (before.started_ms, before.finished_ms))
            busy_ms = max(0, min(ended_ms, from_ms + waited_ms) - max(began_ms, from_ms))
        trigger_ms = min(waited_ms - busy_ms, self._topology.trigger_ms)
        restart = self._facts.restart(own.sub_topology, own.batch_id)
        rest = AgePart.of(_cause(restart) if restart else AgeCause.WAITING)
        return Counter(
            {
                _occupant(own.sub_topology, by_operator): busy_ms,
                AgePart.of(AgeCause.TRIGGER): trigger_ms,
                rest: waited_ms - busy_ms - trigger_ms,
            }
        )


WAITED_FOR = frozenset({AgeCause.BOUND, AgeCause.BLOCKING_PARTITION, AgeCause.BACKLOG, AgeCause.LATE_PRODUCER})
"""Parts in which a window waited for a partition."""


def _cause(restart: Restart) -> AgeCause:
    """Names the cause for which records waited: *restart*."""
    return AgeCause.BACKLOG if restart.stood_still else AgeCause.DRIVER_RESTARTED


def _walk(subject: str, by_operator: Mapping[str, OperatorWork]) -> list[OperatorWork]:
    """Returns the operators from *subject* to its source.

    Each is followed by its latest upstream. The list is empty if any is not measured.
    """
    walk: list[OperatorWork] = []
    name: str | None = subject
    while name is not None:
        own = by_operator.get(name)
        if own is None or own.latency_ms is None or own.worked_ms is None:
            return []
        walk.append(own)
        name = own.slowest_upstream
    return walk


def _occupant(sub_topology: str, by_operator: Mapping[str, OperatorWork]) -> AgePart:
    """Returns the work of the operator that worked longest in a driver."""
    of_driver = [each for each in by_operator.values() if each.sub_topology == sub_topology]
    # Names decide between operators that worked equally long.
    return min(of_driver, key=lambda each: (-(each.worked_ms or 0), each.operator)).part


def _windows(steps: pl.DataFrame, finished: pl.DataFrame) -> Iterator[tuple[tuple[int, int], dict[str, OperatorWork]]]:
    """Yields the work of each operator by window, oldest first."""
    window = ["window_start", "window_end", "operator"]
    rows = steps.with_columns(cs.datetime().dt.epoch("ms")).join(finished, on=window, how="inner")
    columns: list[Any] = ["window_start", "window_end", *STEP, *FINISHED]
    ordered = rows.sort("window_end", "window_start", "operator").select(columns)
    for window, of_window in groupby(ordered.iter_rows(), key=lambda row: row[:2]):
        yield window, {row[2]: OperatorWork(*row[2:]) for row in of_window}
