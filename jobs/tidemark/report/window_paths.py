"""The critical paths of windows, one window after the other, by the rules of ring 0 (ring 1).

What `critical_paths` has Spark say of more windows than one process should count. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import polars as pl

from tidemark.kernels.schemas import rows_of
from tidemark.report.critical_paths import looks_back_ms
from tidemark.report.dag_columns import WINDOW
from tidemark.report.path_facts import Row
from tidemark.report.promises import Promises
from tidemark.semantics import stram
from tidemark.semantics.critical_path import Path, State, Step, critical_path, leaves, measure, parts, path_to
from tidemark.semantics.what_if import slack_ms
from tidemark.spec.intervals import Interval
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, Table
from tidemark.spec.topology import Topology


class Did(NamedTuple):
    """How an operator finished a window: when, in a batch that began when, and by whose clock."""

    ewt_ms: int
    began_ms: int | None
    queued_ms: int | None
    skew_error_ms: int | None
    host: str | None
    skew_ms: int | None


class Finished(NamedTuple):
    """A window, and what its operators did."""

    window: tuple[str, int, int]
    did: Mapping[str, Did]

    @property
    def ewt_ms(self) -> dict[str, int]:
        """When each operator had finished it."""
        return {name: did.ewt_ms for name, did in self.did.items()}


def window_paths(
    operator_windows: pl.DataFrame, topology: Topology, promises: Promises, interval: Interval
) -> dict[Table, pl.DataFrame]:
    """The rows of the three tables of critical paths, for those windows of *operator_windows* that end in *interval*.

    Those that end in `looks_back_ms` before it are in the averages.
    """
    found: dict[Table, list[Row]] = {CRITICAL_PATH_STEPS: [], CRITICAL_PATH_LEAVES: [], CRITICAL_PATHS: []}
    paths = _Paths(topology, promises)
    recent: deque[tuple[int, Iterable[Step]]] = deque()
    for end_ms, ended in groupby(_finished(operator_windows), key=lambda finished: finished.window[2]):
        of_end = [(finished, measure(paths.upstreams, finished.ewt_ms)) for finished in ended]
        recent.extend((end_ms, steps.values()) for _, steps in of_end)
        while recent[0][0] < end_ms - looks_back_ms(topology):
            recent.popleft()
        if end_ms < interval.start_ms:
            continue
        average_ms = _averages(steps for _, steps in recent)
        for finished, steps in of_end:
            for table, rows in paths.of_window(finished, steps, average_ms).items():
                found[table] += (dict(zip(WINDOW, finished.window, strict=True)) | row for row in rows)
    return {table: pl.DataFrame(rows_of(table, rows)) for table, rows in found.items()}


class _Paths:
    """The critical paths of *topology*, of which *promises* are made."""

    def __init__(self, topology: Topology, promises: Promises) -> None:
        self.upstreams = dict(sorted(topology.upstreams.items()))
        self._leaves = leaves(topology.upstreams)
        self._runs_in = {o.name: (sub.name, o.kind.value) for sub in topology.sub_topologies for o in sub.operators}
        self._promises = promises

    def of_window(
        self, finished: Finished, steps: Mapping[str, Step], average_ms: Mapping[str, int]
    ) -> dict[Table, list[Row]]:
        """What the tables say of one window, whose *steps* are measured; without the columns of the window itself."""
        spent = {name: self._spent(step, finished.did) for name, step in steps.items()}
        if not finished.did.keys() >= steps.keys():
            each = [self._step(step, None, None) | spent[name] for name, step in steps.items()]
            path: Row = dict.fromkeys(CRITICAL_PATHS.names[len(WINDOW) :]) | {"state": State.NO_WINDOW_YET.value}
            return {CRITICAL_PATH_STEPS: each, CRITICAL_PATH_LEAVES: [], CRITICAL_PATHS: [path]}
        critical, slack = critical_path(self.upstreams, steps), slack_ms(self.upstreams, finished.ewt_ms, steps)
        slowest = {name: step.slowest_upstream for name, step in steps.items() if step.slowest_upstream}
        averaged = stram.critical_path(self.upstreams, slowest, average_ms)
        return {
            CRITICAL_PATH_STEPS: [
                self._step(step, critical, slack[name]) | spent[name] for name, step in steps.items()
            ],
            CRITICAL_PATH_LEAVES: [self._leaf(path_to(leaf, steps), critical, finished) for leaf in self._leaves],
            CRITICAL_PATHS: [self._path(critical, averaged, spent, finished)],
        }

    def _spent(self, step: Step, did: Mapping[str, Did]) -> Row:
        """`waited_ms`, `queued_ms` and `worked_ms`; None without a latency, or where no row says."""
        if step.latency_ms is None:
            return dict.fromkeys(("waited_ms", "queued_ms", "worked_ms"))
        own = did[step.operator]
        before_ms: int | None = 0
        if step.slowest_upstream is not None:
            before_ms = None if own.began_ms is None else own.began_ms - did[step.slowest_upstream].ewt_ms
        of = parts(step.latency_ms, before_batch_ms=before_ms or 0, queued_ms=own.queued_ms or 0)
        waited_ms = None if before_ms is None else of.waited_ms
        queued_ms = None if own.queued_ms is None else of.queued_ms
        worked_ms = None if waited_ms is None or queued_ms is None else of.worked_ms
        return {"waited_ms": waited_ms, "queued_ms": queued_ms, "worked_ms": worked_ms}

    def _step(self, step: Step, critical: Path | None, slack: int | None) -> Row:
        walk = [each.operator for each in critical.steps] if critical else []
        place = walk.index(step.operator) if step.operator in walk else None
        sub_topology, kind = self._runs_in[step.operator]
        return {
            "operator": step.operator,
            "step": place,
            "slowest_upstream": step.slowest_upstream,
            "latency_ms": step.latency_ms,
            "share": critical.share_of(step.operator) if critical else None,
            "slack_ms": slack,
            "state": step.state.value,
            "sub_topology": sub_topology,
            "kind": kind,
            "promised_ms": self._promises.work_ms.get(step.operator),
        }

    def _leaf(self, path: Path, critical: Path, finished: Finished) -> Row:
        return {
            "leaf": path.steps[-1].operator,
            "source": path.steps[0].operator,
            "latency_ms": path.latency_ms,
            "before_source_ms": _before_source_ms(path, finished),
            "behind_ms": critical.latency_ms - path.latency_ms,
        }

    def _path(self, critical: Path, averaged: Path, spent: Mapping[str, Row], finished: Finished) -> Row:
        walk = [step.operator for step in critical.steps]
        before_source_ms, sla_ms = _before_source_ms(critical, finished), self._promises.end_to_end_ms.get(walk[-1])
        over = [
            worked_ms > promised_ms
            for name in walk
            if (promised_ms := self._promises.work_ms.get(name)) is not None
            and (worked_ms := spent[name]["worked_ms"]) is not None
        ]
        over += [] if sla_ms is None else [before_source_ms + critical.latency_ms > sla_ms]
        return {
            "latency_ms": critical.latency_ms,
            "queued_ms": _sum(spent[name]["queued_ms"] for name in walk),
            "before_source_ms": before_source_ms,
            "leaf": walk[-1],
            "path": str(critical),
            "state": critical.state.value,
            "waited_ms": _sum(spent[name]["waited_ms"] for name in walk),
            "sla_ms": sla_ms,
            "over_sla": any(over) if over else None,
            "skew_error_ms": _skew_error_ms([finished.did[name] for name in walk]),
            "moving_average_ms": averaged.latency_ms,
            "moving_average_path": str(averaged),
        }


def _finished(operator_windows: pl.DataFrame) -> Iterator[Finished]:
    """Each window with the first batch of every operator that closed it, should there be more; by their ends."""
    ms = pl.col("window_start", "window_end", "ewt_adjusted_at", "batch_started_at").dt.epoch("ms")
    did = ("ewt_adjusted_at", "batch_started_at", "queued_ms", "skew_error_ms", "host", "skew_ms")
    rows = operator_windows.with_columns(ms).with_columns(pl.col("batch_started_at") + pl.col("skew_ms").fill_null(0))
    rows = rows.select(*WINDOW, "operator", *did).sort("window_end", "window_start", "operator", *did)
    for window, of_window in groupby(rows.iter_rows(), key=itemgetter(0, 1, 2)):
        first: dict[str, Did] = {}
        for _, _, _, operator, *values in of_window:
            first.setdefault(operator, Did(*values))
        yield Finished(window, first)


def _averages(windows: Iterable[Iterable[Step]]) -> dict[str, int]:
    """Apex's: the mean of each operator's latencies in *windows*, truncated; an input's is 0."""
    samples_ms: dict[str, list[int]] = {}
    for steps in windows:
        for step in steps:
            if step.latency_ms is not None:
                samples_ms.setdefault(step.operator, []).append(step.latency_ms)
    return {name: sum(of) // len(of) for name, of in samples_ms.items()}


def _before_source_ms(path: Path, finished: Finished) -> int:
    """The age of the window when the source of *path* had finished it."""
    return finished.did[path.steps[0].operator].ewt_ms - finished.window[2]


def _skew_error_ms(walk: list[Did]) -> int | None:
    """The largest error of the clocks of *walk*: 0 where all is told by one clock, None where one is not known."""
    clocks, errors_ms = {(did.host, did.skew_ms) for did in walk}, [did.skew_error_ms for did in walk]
    if len(clocks) == 1 and walk[0].host is not None:
        return 0
    known_ms = [error_ms for error_ms in errors_ms if error_ms is not None]
    return max(known_ms) if len(known_ms) == len(errors_ms) else None


def _sum(values: Iterable[int | None]) -> int | None:
    """None when one of them is."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
