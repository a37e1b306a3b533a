"""Divides ages of many windows into parts, and finds culprits.

It also finds the windows that kept their promises.

Every promised operator is judged on its own path, and so is the leaf of the critical path. The rules are those of
`kernels.reports.ages`. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.ages import CAUSES, PLACE, Ages, before_source, excesses, share_out, usual_lengths
from tidemark.kernels.reports.paths import NONE, UNFINISHED, Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import WINDOW_PARTS
from tidemark.model.topology import Topology
from tidemark.reports.paths.batch_facts import BatchFacts, Blockers
from tidemark.reports.promises import Promises, waits_for_windows
from tidemark.semantics.blame import HELD_BY_WATERMARK, HISTORY, HISTORY_MS, AgeCause, AgePart

WindowVerdicts = Mapping[tuple[str, int], bool]
"""True if records of a window broke an operator's promise.

Keys are the operator and the start of the window, epoch ms.
"""
WORK = ("latency_ms", "waited_ms", "queued_ms", "worked_ms", "ewt_ms", "began_ms", "skew_ms", "batch_id")
WAITED_FOR = (AgeCause.BOUND, AgeCause.BLOCKING_PARTITION, AgeCause.BACKLOG, AgeCause.LATE_PRODUCER)
"""Parts in which a window waited for a partition."""


class OperatorWork(NamedTuple):
    """The work of an operator for windows, and their batches."""

    latency_ms: Floats
    waited_ms: Floats
    queued_ms: Floats
    worked_ms: Floats
    ewt_ms: Floats
    began_ms: Floats
    skew_ms: Floats
    batch_id: Floats


@dataclass(frozen=True)
class WindowWork:
    """The work of all operators for windows.

    Attributes:
        windows: their starts and ends, in order.
        operators: names.
        parts: the parts that ages can have.
        work: WORK of each operator (a row) for each window (a column).
        slowest: the place of the slowest upstream; NONE: it has none; UNFINISHED: it did not finish the window.
        owner: the place of the operator's name, kind and sub-topology in `owners`; NONE: it did not finish the window.
        owners: the place of the operator's part, and its sub-topology.
    """

    windows: pl.DataFrame
    operators: Sequence[str]
    parts: Sequence[AgePart]
    work: OperatorWork
    slowest: Places
    owner: Places
    owners: Sequence[tuple[int, str]]


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
        inputs: what parts waited for, in columns of texts: `waited_for`, `restarted` and `queued_behind`.
    """

    windows: Places
    ms: Floats
    total_ms: Floats
    worked_ms: Floats
    configured_ms: Floats
    restart: Places
    inputs: pl.DataFrame


class WindowParts:
    """Finds the parts of the ages of windows.

    Args:
        topology: whose windows they are.
        promises: about its windows.
        facts: about its batches.
        judged: windows whose records were compared with the promises.
        kept: rows of window_parts of earlier windows that kept a promise.
    """

    def __init__(
        self, topology: Topology, promises: Promises, facts: BatchFacts, judged: WindowVerdicts, kept: pl.DataFrame
    ) -> None:
        self._topology, self._promises, self._facts, self._judged = topology, promises, facts, judged
        self._kept = kept.select("subject", "window_end", "operator", "kind", "ms").with_columns(
            cs.datetime().dt.epoch("ms")
        )
        self._promised = {*promises.records, *promises.work_ms} & set(topology.operators)
        self._waits = {name: waits_for_windows(name, topology) for name in topology.operators}

    def rows(self, steps: pl.DataFrame, paths: pl.DataFrame, finished: pl.DataFrame) -> pl.DataFrame:
        """Returns rows of window_parts.

        Args:
            steps: rows of critical_path_steps.
            paths: rows of critical_paths.
            finished: when operators had finished the windows, as in Paths.
        """
        work = _work(steps, finished, self._kept)
        windows = work.windows.join(
            paths.select(pl.col("window_start", "window_end").dt.epoch("ms"), "leaf"),
            on=["window_start", "window_end"], how="left", maintain_order="left",
        )  # fmt: skip
        parts = [rows_of(WINDOW_PARTS, [])]
        for subject in sorted({*self._promised, *windows["leaf"].drop_nulls()} & {*work.operators}):
            asked = np.ones(windows.height, np.bool_)
            if subject not in self._promised:
                asked = (windows["leaf"] == subject).fill_null(value=False).to_numpy()
            ages = self._ages(subject, asked, work)
            if ages is not None:
                parts.append(rows_of(WINDOW_PARTS, self._of_subject(subject, ages, work)))
        return pl.concat(map(pl.DataFrame, parts)).sort("window_end", "window_start", maintain_order=True)

    def _of_subject(self, subject: str, ages: SubjectAges, work: WindowWork) -> pl.DataFrame:
        windows = work.windows[ages.windows]
        by_records = self._late(subject, windows["window_start"])
        over = self._over(subject, windows["window_start"], ages.worked_ms)
        usual_ms, usual_share = self._usual(subject, ages, windows["window_end"].to_numpy(), over, work.parts)
        names = [part.name for part in work.parts]
        # The watermark delays records only where they wait for the end of a window.
        delays = np.array([self._waits.get(subject, False) or name not in HELD_BY_WATERMARK for name in names])
        # Records are late because of any part on their way, and work is too long because of the subject only.
        is_own = np.array([name == subject for name in names])
        excess_ms = excesses(
            ages.ms,
            usual_ms,
            ages.configured_ms,
            can_be_blamed=np.where(by_records, delays[:, None], is_own[:, None]),
            promised_ms=np.where(by_records, 0, self._promises.work_ms.get(subject, 0)),
        )
        is_row = ages.ms != 0
        # The bound has a row even if it took no time.
        is_row[PLACE[AgeCause.BOUND]] = True
        window, part = np.nonzero(is_row.T)
        at = (part, window)
        parts = pl.DataFrame({"operator": names, "kind": [each.kind for each in work.parts]})
        whole = {"ms": ages.ms[at], "age_ms": ages.total_ms[window]}
        lengths = {"usual_ms": usual_ms[at], "usual_share": usual_share[at], "excess_ms": excess_ms[at]}
        rows = pl.DataFrame({"part": part, "restart": ages.restart[window], **whole, **lengths})
        rows = rows.cast(dict.fromkeys(whole, pl.Int64())).fill_nan(None)
        of_windows = windows.with_columns(over_sla=over).hstack(ages.inputs)
        return (
            pl.concat([rows, parts[part], of_windows[window]], how="horizontal")
            .with_columns(
                topology=pl.lit(self._topology.name),
                subject=pl.lit(subject),
                input=_input(),
                finished_at=pl.col("window_end") + pl.col("age_ms"),
                excess_ms=pl.when("over_sla").then("excess_ms"),
                no_history=pl.col("usual_ms").is_null(),
            )
            .drop("part", "restart", *ages.inputs.columns)
        )

    def _late(self, subject: str, starts_ms: pl.Series) -> Mask:
        """Returns True for windows whose records broke a promise of *subject*."""
        late = [start_ms for (name, start_ms), is_late in self._judged.items() if is_late and name == subject]
        return np.isin(starts_ms.to_numpy(), late)

    def are_over(self, subject: str, starts_ms: pl.Series, worked_ms: pl.Series) -> pl.Series:
        """Returns True for windows that broke a promise of *subject*.

        There is such a promise.
        *starts_ms* are their starts, *worked_ms* is the work of *subject* on them.
        """
        work_ms = self._promises.work_ms.get(subject)
        is_long = worked_ms > work_ms if work_ms is not None else pl.Series([False])
        return pl.Series(self._late(subject, starts_ms)) | is_long.fill_null(value=False)

    def _over(self, subject: str, starts_ms: pl.Series, worked_ms: Floats) -> pl.Series:
        """Returns True for windows that broke a promise of *subject*.

        Null: there is none.
        """
        if subject in {*self._promises.records, *self._promises.work_ms}:
            return self.are_over(subject, starts_ms, pl.Series(worked_ms))
        return pl.repeat(None, starts_ms.len(), dtype=pl.Boolean(), eager=True)

    def _usual(
        self, subject: str, ages: SubjectAges, ends_ms: Places, over: pl.Series, parts: Sequence[AgePart]
    ) -> tuple[Floats, Floats]:
        """Returns usual lengths and shares of parts.

        *ends_ms* are the ends of the windows, and *over* is True for those that broke a promise.
        They are compared with windows that ended before, of the day, HISTORY at most.
        """
        before_ms, kept_ms = _lengths(self._kept.filter(pl.col("subject") == subject), parts)
        has_kept = over.eq_missing(other=False).to_numpy()
        kept_ends_ms = np.concatenate([before_ms, ends_ms[has_kept]])
        last = np.searchsorted(kept_ends_ms, ends_ms)
        first = np.maximum(last - HISTORY, np.searchsorted(kept_ends_ms, ends_ms - HISTORY_MS))
        return usual_lengths(np.hstack([kept_ms, ages.ms[:, has_kept]]), np.minimum(first, last), last)

    def _ages(self, subject: str, asked: Mask, work: WindowWork) -> SubjectAges | None:
        """Returns the ages of the windows *asked* at *subject*, in order.

        None: there are none.
        A window of which an operator on the way is not measured yet has none.
        """
        of_walks: list[SubjectAges] = []
        numbers = np.flatnonzero(asked)
        walks = _walks(work.operators.index(subject), numbers, work)
        is_measured = (walks != UNFINISHED).all(axis=0)
        numbers, walks = numbers[is_measured], walks[:, is_measured]
        for chosen in alike([*walks, *work.owner[:, numbers]], numbers.size):
            if chosen.any():
                walk = [place for place in walks[:, int(chosen.argmax())].tolist() if place != NONE]
                source = self._topology.operators.get(work.operators[walk[-1]])
                if isinstance(source, Source):
                    subject_walk = _SubjectWalk(self._topology, self._facts, work, numbers[chosen], walk)
                    of_walks.append(subject_walk.ages(source, self._promises))
        return _together(of_walks) if of_walks else None


def _input() -> pl.Expr:
    """Returns what a part waited for; null: nothing."""
    part, waited_for = pl.col("part"), [PLACE[cause] for cause in WAITED_FOR]
    return (
        # A restart explains more than the partition whose records it made a backlog.
        pl.when(part == pl.col("restart")).then("restarted")
        .when(part == PLACE[AgeCause.QUEUED]).then("queued_behind")
        .when(part.is_in(waited_for)).then("waited_for")
    )  # fmt: skip


class _SubjectWalk:
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
        waited_for = pl.Series(blockers.names, dtype=pl.String()).gather(blockers.number % len(blockers.names))
        inputs = {"waited_for": waited_for, "restarted": restarted, "queued_behind": self._queued_behind()}
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
        configured_ms[PLACE[AgeCause.BLOCKING_PARTITION]] = blockers.idle_after_ms
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


def _together(of_walks: Sequence[SubjectAges]) -> SubjectAges:
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


def _walks(subject: int, numbers: Places, work: WindowWork) -> Places:
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


def _lengths(kept: pl.DataFrame, parts: Sequence[AgePart]) -> tuple[Places, Floats]:
    """Returns ends of windows, in order, and lengths of *parts*.

    *kept* are rows of window_parts about one subject.
    """
    ends_ms = kept["window_end"].unique().sort()
    places = {part: place for place, part in enumerate(parts)}
    lengths_ms = np.zeros((len(parts), ends_ms.len()))
    rows = kept.select("operator", "kind").iter_rows()
    at = np.array([places[AgePart(*row)] for row in rows], np.int64)
    lengths_ms[at, ends_ms.search_sorted(kept["window_end"], side="left").to_numpy()] = kept["ms"].to_numpy()
    return ends_ms.to_numpy(), lengths_ms


def _work(steps: pl.DataFrame, finished: pl.DataFrame, kept: pl.DataFrame) -> WindowWork:
    """Returns the work of all operators.

    Args:
        steps: rows of critical_path_steps.
        finished: when operators had finished the windows, as in Paths.
        kept: rows of window_parts.
    """
    window = ["window_start", "window_end"]
    rows = steps.with_columns(cs.datetime().dt.epoch("ms")).join(finished, on=[*window, "operator"])
    windows = rows.select(window).unique().sort("window_end", "window_start")
    operators = rows["operator"].unique().sort().to_list()
    names = pl.DataFrame({"operator": operators}).with_row_index("place")
    owners = rows.select("operator", "kind", "sub_topology").unique().sort(pl.all())
    of_owners = [AgePart(name, kind) for name, kind, _ in owners.iter_rows()]
    parts = [
        *dict.fromkeys([*CAUSES, *of_owners, *map(AgePart._make, kept.select("operator", "kind").unique().rows())])
    ]
    upstreams = names.rename({"operator": "slowest_upstream", "place": "slowest"})
    placed = (
        rows.join(windows.with_row_index("number"), on=window)
        .join(names, on="operator")
        .join(owners.with_row_index("owner"), on=["operator", "kind", "sub_topology"])
        .join(upstreams, on="slowest_upstream", how="left")
        .with_columns(
            pl.when(pl.col("slowest_upstream").is_null())
            .then(NONE)
            .otherwise(pl.col("slowest").fill_null(UNFINISHED))
            .alias("slowest")
        )
    )
    at = placed["place"].to_numpy(), placed["number"].to_numpy()

    def spread(column: str, empty: float) -> Floats:
        values: Floats = np.full((len(operators), windows.height), empty, np.float64)
        values[at] = placed[column].cast(pl.Float64()).to_numpy()
        return values

    work = OperatorWork(*(spread(column, np.nan) for column in WORK))
    slowest, owner = (spread(column, NONE).astype(np.int64) for column in ("slowest", "owner"))
    places = {part: place for place, part in enumerate(parts)}
    of_subs = [(places[part], sub) for part, sub in zip(of_owners, owners["sub_topology"], strict=True)]
    return WindowWork(windows, operators, parts, work, slowest, owner, of_subs)
