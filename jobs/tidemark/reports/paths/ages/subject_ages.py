"""The ages of windows at one operator, and their parts.

Windows with the same way from their source to the operator are measured together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tidemark.kernels.reports.ages import PLACE, Ages, before_source, share_out
from tidemark.kernels.reports.arrays import NONE, UNFINISHED, Floats, Places
from tidemark.model.kinds.source import Source
from tidemark.model.topology import Topology
from tidemark.reports.paths.ages.batch_facts import BatchFacts, Blockers
from tidemark.reports.paths.ages.window_work import OperatorWork, WindowWork
from tidemark.reports.promises import Promises
from tidemark.semantics.blame import AgeCause


@dataclass(frozen=True)
class SubjectAges:
    """The ages of windows at one subject.

    Attributes:
        windows: the numbers of the windows.
        ms: the length of each part (a row) in each window (a column).
        total_ms: the whole ages.
        worked_ms: the subject's own work.
        configured_ms: the configured length of each part.
        restart: the place of the part that is due to a restart or standstill on the way; NONE: none.
        inputs: what parts waited for, in columns of texts: `waited_for`, `silent`, `restarted` and `queued_behind`.
    """

    windows: Places
    ms: Floats
    total_ms: Floats
    worked_ms: Floats
    configured_ms: Floats
    restart: Places
    inputs: pl.DataFrame


class SubjectWalk:
    """Windows with the same way from their source to a subject.

    Args:
        topology: whose windows they are.
        facts: about its batches.
        work: of all windows.
        windows: numbers of these windows.
        walk: places of the operators, from the subject to its source.
    """

    def __init__(
        self, topology: Topology, facts: BatchFacts, work: WindowWork, windows: Places, walk: Sequence[int]
    ) -> None:
        self._topology, self._facts, self._parts, self._windows, self._walk = topology, facts, work.parts, windows, walk
        owners = {place: owner for place, owner in enumerate(work.owner[:, windows[0]].tolist()) if owner != NONE}
        self._part = {place: work.owners[owner][0] for place, owner in owners.items()}
        self._sub = {place: work.owners[owner][1] for place, owner in owners.items()}
        self._work = {place: OperatorWork(*(values[place, windows] for values in work.work)) for place in owners}
        self._batch = {place: self._work[place].batch_id.astype(np.int64) for place in walk}
        self._end_ms = work.windows["window_end"].to_numpy()[windows].astype(np.float64)

    def ages(self, source: Source, promises: Promises) -> SubjectAges:
        """Returns the ages of the windows, which come from *source*."""
        first, ages = self._walk[-1], Ages(self._parts, self._windows.size)
        work, sub, batch = self._work[first], self._sub[first], self._batch[first]
        blockers = self._facts.blockers(self._topology.sub_topology(sub), source, batch, self._end_ms)
        own_ms = work.ewt_ms - work.latency_ms
        began_ms, skew_ms = np.where(np.isnan(work.began_ms), own_ms, work.began_ms), np.nan_to_num(work.skew_ms)
        before_source(
            ages,
            self._end_ms,
            own_ms,
            bound_ms=blockers.bound_ms,
            ready_ms=blockers.ready_ms,
            closing=self._facts.closing(sub, batch, blockers, began_ms=began_ms, skew_ms=skew_ms),
            trigger_ms=self._topology.trigger_ms,
            queued_ms=self._facts.queued(sub, batch)[0],
            source=self._part[first],
            busy=self._occupant(sub),
        )
        for place in self._walk:
            self._at_operator(ages, place)
        restart, restarted = self._restarted(blockers)
        inputs = {
            "waited_for": blockers.names,
            "silent": blockers.silent,
            "restarted": restarted,
            "queued_behind": self._queued_behind(),
        }
        return SubjectAges(
            windows=self._windows,
            ms=ages.ms,
            total_ms=work.ewt_ms - self._end_ms + sum(self._work[place].latency_ms for place in self._walk[:-1]),
            worked_ms=self._work[self._walk[0]].worked_ms,
            configured_ms=self._configured_ms(blockers, promises),
            restart=restart,
            inputs=pl.DataFrame(inputs),
        )

    def _configured_ms(self, blockers: Blockers, promises: Promises) -> Floats:
        """Returns the configured length of each part."""
        configured_ms = np.zeros((len(self._parts), self._windows.size))
        for place, part in enumerate(self._parts):
            configured_ms[place] = promises.work_ms.get(part.name, 0)
        configured_ms[PLACE[AgeCause.BOUND]] = blockers.bound_ms
        for cause in (AgeCause.BLOCKING_PARTITION, AgeCause.SILENCE):
            configured_ms[PLACE[cause]] = blockers.idle_after_ms
        # Each driver on the way may wait for a trigger.
        drivers = {self._sub[place] for place in self._walk}
        configured_ms[PLACE[AgeCause.TRIGGER]] = self._topology.trigger_ms * len(drivers)
        return configured_ms

    def _restarted(self, blockers: Blockers) -> tuple[Places, pl.Series]:
        """Finds drivers on the way that restarted or stood still.

        Returns the place of the part that is due to it, and a text with its time and the number of records that waited.
        """
        number = np.full(self._windows.size, NONE)
        # Of several drivers it is the one next to the source: those behind it waited for it.
        for place in reversed(self._walk):
            of_source = blockers if place == self._walk[-1] else None
            restart = self._facts.restart(self._sub[place], self._batch[place], of_source)
            number = np.where(number == NONE, restart, number)
        causes, texts = self._facts.restart_causes, self._facts.restart_texts
        return np.append(causes, NONE)[number], texts.gather(number % texts.len())

    def _queued_behind(self) -> pl.Series:
        """Names the streams that drivers on the way waited for.

        Null: none.
        """
        behind: list[pl.Series] = []
        for n, place in enumerate(self._walk):
            names = self._facts.queued(self._sub[place], self._batch[place])[1]
            if names.null_count() < names.len():
                behind.append(names.alias(str(n)))
        if not behind:
            return pl.repeat(None, self._windows.size, dtype=pl.String(), eager=True)
        each_once = pl.concat_list(behind).list.drop_nulls().list.unique(maintain_order=True).list.join(", ")
        return pl.select(pl.when(each_once != "").then(each_once)).to_series()

    def _occupant(self, sub: str) -> Places:
        """Returns the part of the operator of *sub* that worked longest."""
        # The places are in the order of names, which decide between operators that worked equally long.
        places = [place for place in self._work if self._sub[place] == sub]
        worked_ms = np.stack([np.nan_to_num(self._work[place].worked_ms) for place in places])
        longest: Places = np.array([self._part[place] for place in places])[worked_ms.argmax(axis=0)]
        return longest

    def _at_operator(self, ages: Ages, place: int) -> None:
        """Adds the parts of one operator's latency to *ages*."""
        work = self._work[place]
        queued_ms, waited_ms = np.nan_to_num(work.queued_ms), np.nan_to_num(work.waited_ms)
        ages.add(self._part[place], work.worked_ms)
        if waited_ms.any():
            self._waited(ages, place, waited_ms)
        if queued_ms.any():
            beside: list[tuple[int, Floats, Floats]] = []
            for other, sibling in self._work.items():
                if self._sub[other] == self._sub[place] and other not in self._walk:
                    beside.append(
                        (self._part[other], sibling.ewt_ms - np.nan_to_num(sibling.worked_ms), sibling.ewt_ms)
                    )
            # It was queued between the beginning of its batch and its EWT.
            share_out(ages, (work.ewt_ms - work.latency_ms + waited_ms, work.ewt_ms), beside, queued_ms)

    def _waited(self, ages: Ages, place: int, waited_ms: Floats) -> None:
        """Adds the parts of the wait of a hop's reader to *ages*.

        Its driver was busy with the batch before, or waited for a trigger.
        """
        work, sub, batch = self._work[place], self._sub[place], self._batch[place]
        from_ms = work.ewt_ms - work.latency_ms
        # Batches are by their driver's clock, and steps by the clock of all hosts.
        began_ms, ended_ms = (at + np.nan_to_num(work.skew_ms) for at in self._facts.before(sub, batch))
        busy_ms = np.minimum(ended_ms, from_ms + waited_ms) - np.maximum(began_ms, from_ms)
        busy_ms = np.where(waited_ms != 0, np.fmax(0, busy_ms), 0)
        trigger_ms = np.minimum(waited_ms - busy_ms, self._topology.trigger_ms)
        restart = self._facts.restart(sub, batch)
        rest = np.append(self._facts.restart_causes, PLACE[AgeCause.WAITING])[restart]
        ages.add(self._occupant(sub), busy_ms)
        ages.add(PLACE[AgeCause.TRIGGER], trigger_ms)
        ages.add(rest, waited_ms - busy_ms - trigger_ms)


def together(of_walks: Sequence[SubjectAges]) -> SubjectAges:
    """Returns the ages of all windows, in their order."""
    windows = np.concatenate([each.windows for each in of_walks])
    order = np.argsort(windows)

    def joined(name: str) -> Floats:
        values: Floats = np.concatenate([getattr(each, name) for each in of_walks], axis=-1)
        return values[..., order]

    inputs = pl.concat([each.inputs for each in of_walks])[order]
    return SubjectAges(
        windows[order], joined("ms"), joined("total_ms"), joined("worked_ms"), joined("configured_ms"),
        joined("restart").astype(np.int64), inputs,
    )  # fmt: skip


def walks_to(subject: int, numbers: Places, work: WindowWork) -> Places:
    """Returns places of operators from *subject* to its source, in rows.

    Columns are the windows *numbers*.
    They are followed by NONE. They contain UNFINISHED if any operator is not measured.
    """
    is_known = (work.owner != NONE) & ~np.isnan(work.work.latency_ms) & ~np.isnan(work.work.worked_ms)
    at = np.full(numbers.size, subject)
    walks: list[Places] = []
    while (at != NONE).any():
        at = np.where((at < 0) | is_known[at, numbers], at, UNFINISHED)
        walks.append(at)
        at = np.where(at < 0, NONE, work.slowest[at, numbers])
    return np.stack(walks) if walks else np.empty((0, numbers.size), np.int64)
