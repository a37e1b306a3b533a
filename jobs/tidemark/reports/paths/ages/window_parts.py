"""Divides ages of many windows into parts, and finds culprits.

It also finds the windows that kept their promises.

Every promised operator is judged on its own path, and so is the leaf of the critical path. The rules are those of
`kernels.reports.ages`. Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import polars as pl
import polars.selectors as cs

from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.reports.ages import COMPARED, PLACE, compared_lengths, usual_lengths
from tidemark.kernels.reports.arrays import NONE, UNFINISHED, Floats, Mask, Places, alike
from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import WINDOW_PARTS
from tidemark.model.topology import Topology
from tidemark.reports.paths.ages.batch_facts import BatchFacts
from tidemark.reports.paths.ages.subject_ages import SubjectAges, SubjectWalk, together, walks_to
from tidemark.reports.paths.ages.window_work import WindowWork, window_work
from tidemark.reports.promises import Promises, WindowVerdict, waits_for_windows
from tidemark.semantics.blame import HELD_BY_WATERMARK, HISTORY, HISTORY_MS, AgeCause, AgePart

RecordVerdicts = Mapping[tuple[str, int], tuple[WindowVerdict, ...]]
"""The verdicts on the records of windows.

Keys are the operator and the start of the window, epoch ms.
"""
WINDOW = ["window_start", "window_end"]
_VERDICTS = pl.List(
    pl.Struct(
        {
            "sla": pl.String(),
            "operator": pl.String(),
            "quantile": pl.Float64(),
            "limit_ms": pl.Int64(),
            "value_ms": pl.Float64(),
            "broken": pl.Boolean(),
        }
    )
)
WAITED_FOR = (AgeCause.BOUND, AgeCause.BLOCKING_PARTITION, AgeCause.BACKLOG, AgeCause.LATE_PRODUCER)
"""Parts in which a window waited for a partition."""


class WindowParts:
    """Finds the parts of the ages of windows.

    Args:
        topology: whose windows they are.
        promises: about its windows.
        facts: about its batches.
        judged: the verdicts on the records of windows.
        kept: rows of window_parts of earlier windows that kept a promise.
    """

    def __init__(
        self, topology: Topology, promises: Promises, facts: BatchFacts, judged: RecordVerdicts, kept: pl.DataFrame
    ) -> None:
        self._topology, self._promises, self._facts, self._judged = topology, promises, facts, judged
        self._kept = kept.select("subject", "window_end", "operator", "kind", "ms").with_columns(
            cs.datetime().dt.epoch("ms")
        )
        self._promised = promises.operators & set(topology.operators)
        self._waits = {name: waits_for_windows(name, topology) for name in topology.operators}

    def rows(self, steps: pl.DataFrame, paths: pl.DataFrame, finished: pl.DataFrame) -> pl.DataFrame:
        """Returns rows of window_parts.

        Args:
            steps: rows of critical_path_steps.
            paths: rows of critical_paths.
            finished: when operators had finished the windows, as in Paths.
        """
        work = window_work(steps, finished, self._kept)
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
        broken = self._broken(subject, windows["window_start"], ages.worked_ms)
        over = broken.list.len() > 0
        usual_ms, usual_share = self._usual(subject, ages, windows["window_end"].to_numpy(), over, work.parts)
        names = [part.name for part in work.parts]
        # The watermark delays records only where they wait for the end of a window.
        delays = np.array([self._waits.get(subject, False) or name not in HELD_BY_WATERMARK for name in names])
        # Records are late because of any part on their way, and work is too long because of the subject only.
        is_own = np.array([name == subject for name in names])
        lengths = compared_lengths(
            ages.ms,
            usual_ms,
            ages.configured_ms,
            is_work=~by_records & is_own[:, None],
            worked_ms=ages.worked_ms,
            limit_ms=self._promises.work_ms.get(subject, 0),
        )
        can_be_blamed = np.where(by_records, delays[:, None], is_own[:, None])
        excess_ms = np.where(can_be_blamed, lengths.excess_ms, 0.0)
        is_row = ages.ms != 0
        # The bound has a row even if it took no time.
        is_row[PLACE[AgeCause.BOUND]] = True
        window, part = np.nonzero(is_row.T)
        at = (part, window)
        parts = pl.DataFrame({"operator": names, "kind": [each.kind for each in work.parts]})
        whole = {"ms": ages.ms[at], "age_ms": ages.total_ms[window]}
        usual = {"usual_ms": usual_ms[at], "usual_share": usual_share[at]}
        judged = {
            "compared": [COMPARED[place] for place in lengths.compared[at]],
            "judged_ms": lengths.judged_ms[at],
            "expected_ms": lengths.expected_ms[at],
            "excess_ms": excess_ms[at],
        }
        rows = pl.DataFrame({"part": part, "restart": ages.restart[window], **whole, **usual, **judged})
        rows = rows.cast(dict.fromkeys(whole, pl.Int64())).fill_nan(None)
        of_windows = windows.with_columns(over_sla=over, broken_slas=broken).hstack(ages.inputs)
        return (
            pl.concat([rows, parts[part], of_windows[window]], how="horizontal")
            .with_columns(
                topology=pl.lit(self._topology.name),
                subject=pl.lit(subject),
                input=_input(),
                finished_at=pl.col("window_end") + pl.col("age_ms"),
                **{name: pl.when("over_sla").then(name) for name in judged},
                no_history=pl.col("usual_ms").is_null(),
            )
            .drop("part", "restart", *ages.inputs.columns)
        )

    def _late(self, subject: str, starts_ms: pl.Series) -> Mask:
        """Returns True for windows whose records broke a promise of *subject*."""
        late: list[int] = []
        for (name, start_ms), verdicts in self._judged.items():
            if name == subject and any(verdict.broken for verdict in verdicts):
                late.append(start_ms)
        return np.isin(starts_ms.to_numpy(), late)

    def _broken(self, subject: str, starts_ms: pl.Series, worked_ms: Floats) -> pl.Series:
        """Returns the SLAs of *subject* that each window broke; null where it has none."""
        if subject not in self._promised:
            return pl.repeat(None, starts_ms.len(), dtype=pl.List(pl.String()), eager=True)
        broken: list[list[str]] = []
        for start_ms, work_ms in zip(starts_ms, pl.Series(worked_ms, nan_to_null=True), strict=True):
            verdicts = verdicts_of(subject, start_ms, work_ms, self._judged, self._promises)
            broken.append(list(dict.fromkeys(verdict.sla for verdict in verdicts if verdict.broken)))
        return pl.Series(broken, dtype=pl.List(pl.String()))

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
        walks = walks_to(work.operators.index(subject), numbers, work)
        is_measured = (walks != UNFINISHED).all(axis=0)
        numbers, walks = numbers[is_measured], walks[:, is_measured]
        for chosen in alike([*walks, *work.owner[:, numbers]], numbers.size):
            if chosen.any():
                walk = [place for place in walks[:, int(chosen.argmax())].tolist() if place != NONE]
                source = self._topology.operators.get(work.operators[walk[-1]])
                if isinstance(source, Source):
                    subject_walk = SubjectWalk(self._topology, self._facts, work, numbers[chosen], walk)
                    of_walks.append(subject_walk.ages(source, self._promises))
        return together(of_walks) if of_walks else None


def verdicts_of(
    operator: str, start_ms: int, worked_ms: float | None, judged: RecordVerdicts, promises: Promises
) -> list[WindowVerdict]:
    """Returns the verdicts on a window by the promises of *operator*.

    Args:
        operator: its name.
        start_ms: start of the window.
        worked_ms: the operator's work on the window; None: it is not known.
        judged: the verdicts on the records of windows.
        promises: about the windows.
    """
    verdicts = [*judged.get((operator, start_ms), ())]
    if worked_ms is not None:
        verdicts += [promise.judge(operator, worked_ms) for promise in promises.work.get(operator, ())]
    return verdicts


def with_window_verdicts(
    paths: pl.DataFrame, steps: pl.DataFrame, judged: RecordVerdicts, promises: Promises
) -> pl.DataFrame:
    """Returns *paths* with `over_sla` and `verdicts`.

    A window is over its SLA if it broke one of any of its operators. *paths* are rows of critical_paths, and *steps*
    those of critical_path_steps.
    """
    by_window: dict[tuple[int, int], list[WindowVerdict]] = {}
    of_operators = steps.filter(pl.col("operator").is_in(promises.operators))
    rows = of_operators.select(*(pl.col(name).dt.epoch("ms") for name in WINDOW), "operator", "worked_ms")
    for start_ms, end_ms, operator, worked_ms in rows.iter_rows():
        verdicts = verdicts_of(operator, start_ms, worked_ms, judged, promises)
        by_window.setdefault((start_ms, end_ms), []).extend(verdicts)
    over: list[bool | None] = []
    listed: list[list[dict[str, object]] | None] = []
    windows = paths.select(*(pl.col(name).dt.epoch("ms") for name in WINDOW), "latency_ms")
    for start_ms, end_ms, latency_ms in windows.iter_rows():
        found = by_window.get((start_ms, end_ms))
        # An open window has no latency and no verdict; nor has one without a promise.
        is_judged = found is not None and latency_ms is not None
        over.append(any(verdict.broken for verdict in found) if found is not None and is_judged else None)
        listed.append([asdict(verdict) for verdict in sorted(found, key=_severity)] if found and is_judged else None)
    return paths.with_columns(
        over_sla=pl.Series(over, dtype=pl.Boolean()), verdicts=pl.Series(listed, dtype=_VERDICTS)
    ).select(paths.columns)


def _severity(verdict: WindowVerdict) -> tuple[bool, float, str]:
    """Orders verdicts: broken promises first, then by how near to its limit the value is."""
    return not verdict.broken, -verdict.value_ms / verdict.limit_ms, verdict.sla


def _input() -> pl.Expr:
    """Returns what a part waited for; null: nothing."""
    part, waited_for = pl.col("part"), [PLACE[cause] for cause in WAITED_FOR]
    return (
        # A restart explains more than the partition whose records it made a backlog.
        pl.when(part == pl.col("restart")).then("restarted")
        .when(part == PLACE[AgeCause.QUEUED]).then("queued_behind")
        .when(part == PLACE[AgeCause.SILENCE]).then("silent")
        .when(part.is_in(waited_for)).then("waited_for")
    )  # fmt: skip


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
