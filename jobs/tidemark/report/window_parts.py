"""What the age of windows was spent on, whether they kept what was promised, and which part is to blame (ring 1).

Every promised operator is judged on its own path, and so is the leaf of the critical path. The rules are those of
`semantics.blame`. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import polars as pl
import polars.selectors as cs

from tidemark.kernels.restarts import Restart
from tidemark.report.batch_facts import BatchFacts, Blocker
from tidemark.report.path_facts import Row
from tidemark.report.promises import Promises, waits_for_windows
from tidemark.semantics.blame import (
    HELD_BY_WATERMARK,
    HISTORY,
    HISTORY_MS,
    AgeCause,
    Part,
    Spent,
    before_source,
    grown,
    shared_out,
)
from tidemark.spec.operators import Source
from tidemark.spec.topology import Topology

Judged = Mapping[tuple[str, int], bool]
"""By operator and start of a window: whether records of the window broke the operator's promise."""
FINISHED = ("ewt_ms", "began_ms", "skew_ms", "batch_id")
STEP = ("operator", "kind", "sub_topology", "slowest_upstream", "latency_ms", "waited_ms", "queued_ms", "worked_ms")


class Did(NamedTuple):
    """What an operator did for one window, and in which batch."""

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
    def part(self) -> Part:
        """The part of the age that is its work."""
        return Part(self.operator, self.kind)


@dataclass(frozen=True, kw_only=True)
class Age:
    """The age of a window at an operator, and what it was spent on."""

    spent: Spent
    total_ms: int
    finished_ms: int
    blocker: Blocker
    restart: tuple[AgeCause, str] | None
    drivers: int

    def input(self, kind: str) -> str | None:
        """What a part of that *kind* was spent waiting for."""
        if self.restart and kind == self.restart[0]:
            return self.restart[1]
        return self.blocker.input if kind in WAITED_FOR else None


class Kept:
    """The newest windows that kept the promise of each operator, as they come."""

    def __init__(self, stored: pl.DataFrame) -> None:
        self._windows: dict[str, deque[tuple[int, Spent]]] = defaultdict(lambda: deque(maxlen=HISTORY))
        rows = stored.with_columns(cs.datetime().dt.epoch("ms")).sort("window_end", "subject")
        columns = ("subject", "window_end", "operator", "kind", "ms")
        for (subject, end_ms), of in groupby(rows.select(columns).iter_rows(), key=lambda row: row[:2]):
            self.add(subject, end_ms, {Part(name, kind): ms for _, _, name, kind, ms in of})

    def add(self, subject: str, end_ms: int, spent: Spent) -> None:
        """The window that ends at *end_ms* kept the promise of *subject*."""
        self._windows[subject].append((end_ms, spent))

    def before(self, subject: str, end_ms: int) -> list[Spent]:
        """Those with which a window that ends at *end_ms* is compared."""
        return [spent for at_ms, spent in self._windows[subject] if end_ms - HISTORY_MS <= at_ms < end_ms]


class WindowParts:
    """Finds the parts of windows of *topology*, of which *promises* are made."""

    def __init__(self, topology: Topology, promises: Promises, facts: BatchFacts, judged: Judged, kept: Kept) -> None:
        self._topology, self._promises, self._facts, self._judged = topology, promises, facts, judged
        self._kept = kept
        self._promised = sorted({*promises.records, *promises.work_ms} & set(topology.operators))
        self._waits = {name: waits_for_windows(name, topology) for name in topology.operators}

    def rows(self, steps: pl.DataFrame, leaves: Mapping[tuple[int, int], str], finished: pl.DataFrame) -> Iterator[Row]:
        """The rows of window_parts of the windows that *steps* tell of; *leaves* are those of their critical paths."""
        for (start_ms, end_ms), did in _windows(steps, finished):
            leaf = leaves.get((start_ms, end_ms))
            for subject in sorted({*self._promised, *([leaf] if leaf else [])}):
                age = self._age(subject, end_ms, did)
                if age is not None:
                    yield from self._of_subject(subject, start_ms, end_ms, age, did[subject].worked_ms)

    def is_over(self, subject: str, start_ms: int, worked_ms: int | None) -> bool | None:
        """Whether a window broke a promise of *subject*; None when there is none."""
        if subject not in self._promised:
            return None
        work_ms = self._promises.work_ms.get(subject)
        too_much_work = work_ms is not None and worked_ms is not None and worked_ms > work_ms
        return self._judged.get((subject, start_ms), False) or too_much_work

    def _of_subject(self, subject: str, start_ms: int, end_ms: int, age: Age, worked_ms: int | None) -> Iterator[Row]:
        over, kept = self.is_over(subject, start_ms, worked_ms), self._kept.before(subject, end_ms)
        by_records = self._judged.get((subject, start_ms), False)
        blamed = grown(
            age.spent,
            kept,
            self._configured_ms(age),
            only=self._candidates(subject, age) if by_records else {subject},
            promised_ms=0 if by_records else self._promises.work_ms.get(subject, 0),
        )
        if over is False:
            self._kept.add(subject, end_ms, age.spent)
        for each in blamed:
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
        """What can delay records of *subject*: the watermark can only where they wait for the end of a window."""
        return {part.name for part in age.spent} - (frozenset() if self._waits[subject] else HELD_BY_WATERMARK)

    def _configured_ms(self, age: Age) -> dict[str, int]:
        source = age.blocker.source
        return {
            **self._promises.work_ms,
            AgeCause.BOUND: source.bound_ms,
            AgeCause.BLOCKING_PARTITION: source.idle_after_ms or 0,
            AgeCause.TRIGGER: self._topology.trigger_ms * age.drivers,
        }

    def _age(self, subject: str, end_ms: int, did: Mapping[str, Did]) -> Age | None:
        """The age of a window at *subject*; None while it is not known what every operator on the way did."""
        walk = _walk(subject, did)
        source = self._topology.operators.get(walk[-1].operator) if walk else None
        if not isinstance(source, Source):
            return None
        first = walk[-1]
        blocker = self._facts.blocker(self._topology.sub_topology(first.sub_topology), source, first.batch_id, end_ms)
        spent = Counter(self._before_source(first, end_ms, blocker, did))
        for each in walk:
            spent.update(self._at_operator(each, walk, did))
        total_ms = first.ewt_ms - end_ms + sum(each.latency_ms or 0 for each in walk[:-1])
        return Age(
            spent=spent,
            total_ms=total_ms,
            finished_ms=end_ms + total_ms,
            blocker=blocker,
            restart=self._restarted(walk, blocker),
            drivers=len({each.sub_topology for each in walk}),
        )

    def _restarted(self, walk: list[Did], blocker: Blocker) -> tuple[AgeCause, str] | None:
        """Which driver on the way restarted or stood still, from when to when, and how many records waited.

        None: none did. Of several it is the one next to the source.
        """
        for each in reversed(walk):
            of_source = blocker if each is walk[-1] else None
            restart = self._facts.restart(each.sub_topology, each.batch_id, of_source)
            if restart is not None:
                return _cause(restart), f"driver of {each.sub_topology}: {restart.seen}"
        return None

    def _before_source(self, first: Did, end_ms: int, blocker: Blocker, did: Mapping[str, Did]) -> dict[Part, int]:
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
            source=first.part,
            busy=_occupant(first.sub_topology, did),
        )

    def _at_operator(self, own: Did, walk: list[Did], did: Mapping[str, Did]) -> Counter[Part]:
        """What the latency of one operator on the way was spent on."""
        spent = Counter({own.part: own.worked_ms or 0})
        if own.waited_ms:
            spent.update(self._waited(own, own.waited_ms, did))
        if own.queued_ms:
            beside = {
                other.part: (other.ewt_ms - (other.worked_ms or 0), other.ewt_ms)
                for other in did.values()
                if other.sub_topology == own.sub_topology and other not in walk
            }
            wait = (own.ewt_ms - (own.latency_ms or 0) + (own.waited_ms or 0), own.ewt_ms)
            spent.update(shared_out(wait, beside, own.queued_ms))
        return spent

    def _waited(self, own: Did, waited_ms: int, did: Mapping[str, Did]) -> Counter[Part]:
        """What a hop's reader waited for: its driver was busy with the batch before, or for a trigger."""
        from_ms = own.ewt_ms - (own.latency_ms or 0)
        before = self._facts.before(own.sub_topology, own.batch_id)
        busy_ms = 0
        if before is not None:
            began_ms, ended_ms = (at + (own.skew_ms or 0) for at in (before.started_ms, before.finished_ms))
            busy_ms = max(0, min(ended_ms, from_ms + waited_ms) - max(began_ms, from_ms))
        trigger_ms = min(waited_ms - busy_ms, self._topology.trigger_ms)
        restart = self._facts.restart(own.sub_topology, own.batch_id)
        rest = Part.of(_cause(restart) if restart else AgeCause.WAITING)
        return Counter(
            {
                _occupant(own.sub_topology, did): busy_ms,
                Part.of(AgeCause.TRIGGER): trigger_ms,
                rest: waited_ms - busy_ms - trigger_ms,
            }
        )


WAITED_FOR = frozenset({AgeCause.BOUND, AgeCause.BLOCKING_PARTITION, AgeCause.BACKLOG, AgeCause.LATE_PRODUCER})
"""Parts in which a window waited for a partition."""


def _cause(restart: Restart) -> AgeCause:
    """What it is called that records waited for *restart*."""
    return AgeCause.BACKLOG if restart.stood_still else AgeCause.DRIVER_RESTARTED


def _walk(subject: str, did: Mapping[str, Did]) -> list[Did]:
    """The operators from *subject* up to its source along the latest upstreams; empty where one is not measured."""
    walk: list[Did] = []
    name: str | None = subject
    while name is not None:
        own = did.get(name)
        if own is None or own.latency_ms is None or own.worked_ms is None:
            return []
        walk.append(own)
        name = own.slowest_upstream
    return walk


def _occupant(sub_topology: str, did: Mapping[str, Did]) -> Part:
    """The operator that worked longest of those that one driver runs."""
    of_driver = [each for each in did.values() if each.sub_topology == sub_topology]
    return min(of_driver, key=lambda each: (-(each.worked_ms or 0), each.operator)).part


def _windows(steps: pl.DataFrame, finished: pl.DataFrame) -> Iterator[tuple[tuple[int, int], dict[str, Did]]]:
    """What each operator did, by window, in the order of their ends."""
    window = ["window_start", "window_end", "operator"]
    rows = steps.with_columns(cs.datetime().dt.epoch("ms")).join(finished, on=window, how="inner")
    columns: list[Any] = ["window_start", "window_end", *STEP, *FINISHED]
    ordered = rows.sort("window_end", "window_start", "operator").select(columns)
    for window, of_window in groupby(ordered.iter_rows(), key=lambda row: row[:2]):
        yield window, {row[2]: Did(*row[2:]) for row in of_window}
