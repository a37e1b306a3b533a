"""The critical paths of windows, one window after the other, by the rules of ring 0 (ring 1).

A window is open while an operator that nobody reads has not finished it. A driver that stands still does not keep it
open: it is on the path with the number of windows that it is behind. Nor does a flow whose own time stands still, such
as an idle source: once others are HEARTBEAT_TIMEOUT ahead, the path is that of those that have finished. A later run
replaces what was open. Lengths are ms, instants epoch ms.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from tidemark.kernels.schemas import rows_of
from tidemark.report.path_facts import Row
from tidemark.report.promises import Promises
from tidemark.report.window_graph import WINDOW, Did, Finished, Passed, windows_finished
from tidemark.semantics import stram
from tidemark.semantics.critical_path import (
    Limits,
    Path,
    State,
    Step,
    critical_path,
    leading_to,
    measure,
    parts,
    path_to,
)
from tidemark.semantics.what_if import slack_ms
from tidemark.spec.intervals import Interval
from tidemark.spec.tables import CRITICAL_PATH_LEAVES, CRITICAL_PATH_STEPS, CRITICAL_PATHS, Table
from tidemark.spec.topology import Topology

FINISHED = {
    **dict.fromkeys(WINDOW[1:], pl.Int64()),
    "operator": pl.String(),
    **dict.fromkeys(("ewt_ms", "began_ms", "skew_ms", "batch_id"), pl.Int64()),
}
"""The columns of Paths.finished."""
STANDS_STILL = frozenset({State.STUCK, State.ESTIMATED})


class Paths(NamedTuple):
    """Rows of the three tables of critical paths, and a row for each operator that *finished* one of their windows.

    Instants of `finished` are epoch ms by the clock of all hosts.
    """

    tables: dict[Table, pl.DataFrame]
    finished: pl.DataFrame


@dataclass(frozen=True)
class Known:
    """What is known besides rows of windows: when drivers *passed* some, and each operator's *newest* window's end."""

    passed: Passed = field(default_factory=Passed)
    newest_ms: Mapping[str, int] = field(default_factory=dict)


def looks_back_ms(topology: Topology) -> int:
    """How long before a window others end that its moving averages are taken over."""
    return (stram.LATENCY_SAMPLES - 1) * topology.window_ms


def window_paths(
    operator_windows: pl.DataFrame,
    topology: Topology,
    promises: Promises,
    interval: Interval,
    known: Known | None = None,
) -> Paths:
    """The critical paths of those windows of *operator_windows* that end in *interval*.

    Those that end in `looks_back_ms` before it are in the averages.
    """
    found: dict[Table, list[Row]] = {CRITICAL_PATH_STEPS: [], CRITICAL_PATH_LEAVES: [], CRITICAL_PATHS: []}
    known = known or Known()
    did: list[tuple[object, ...]] = []
    paths = _Paths(topology, promises, _newest(operator_windows) | dict(known.newest_ms))
    recent: deque[tuple[int, Iterable[Step]]] = deque()
    for finished in windows_finished(operator_windows, topology, known.passed):
        end_ms, steps = finished.window[2], paths.measured(finished)
        recent.append((end_ms, steps.values()))
        while recent[0][0] < end_ms - looks_back_ms(topology):
            recent.popleft()
        if interval.start_ms <= end_ms < interval.end_ms:
            for table, rows in paths.of_window(finished, steps, _averages(steps for _, steps in recent)).items():
                found[table] += (dict(zip(WINDOW, finished.window, strict=True)) | row for row in rows)
            did += _did(finished)
    tables = {table: pl.DataFrame(rows_of(table, rows)) for table, rows in found.items()}
    return Paths(tables, pl.DataFrame(did, schema=FINISHED, orient="row"))


def _did(finished: Finished) -> Iterator[tuple[object, ...]]:
    for name, did in finished.did.items():
        yield (*finished.window[1:], name, did.ewt_ms, did.began_ms, did.skew_ms, did.batch_id)


def _newest(operator_windows: pl.DataFrame) -> dict[str, int]:
    """The end of the newest window that each operator has finished."""
    newest = operator_windows.group_by("operator").agg(pl.col("window_end").max().dt.epoch("ms"))
    return dict(newest.iter_rows())


class _Paths:
    """The critical paths of *topology*, of which *promises* are made; *newest_ms* as in Known."""

    def __init__(self, topology: Topology, promises: Promises, newest_ms: Mapping[str, int]) -> None:
        self._promises, self._newest_ms = promises, newest_ms
        self._limits = Limits(
            window_ms=topology.window_ms, throughput_calculation_max_samples=topology.max_outstanding_windows
        )

    def measured(self, finished: Finished) -> dict[str, Step]:
        """The latency of every operator in a window."""
        upstreams, ewt_ms = finished.upstreams, finished.ewt_ms
        behind = {
            name: self._behind(finished.window[2], name, read)
            for name, read in upstreams.items()
            if read and name not in ewt_ms
        }
        return measure(upstreams, ewt_ms, windows_behind=behind, limits=self._limits)

    def _behind(self, end_ms: int, name: str, upstreams: Iterable[str]) -> int:
        """By how many windows *name*, which has not finished the one that ends at *end_ms*, is behind *upstreams*."""
        ahead_ms = max((self._newest_ms.get(each, 0) for each in upstreams), default=0)
        own_ms = self._newest_ms.get(name, end_ms - self._limits.window_ms)
        return max(0, ahead_ms - own_ms) // self._limits.window_ms

    def of_window(
        self, finished: Finished, steps: Mapping[str, Step], average_ms: Mapping[str, int]
    ) -> dict[Table, list[Row]]:
        """What the tables say of one window, whose *steps* are measured; without the columns of the window itself."""
        spent = {name: self._spent(step, finished.did) for name, step in steps.items()}
        walks = self._walks(finished, steps)
        if not walks:
            each = [self._step(step, None, None, finished) | spent[name] for name, step in steps.items()]
            path: Row = dict.fromkeys(CRITICAL_PATHS.names[len(WINDOW) :]) | {"state": State.NO_WINDOW_YET.value}
            return {CRITICAL_PATH_STEPS: each, CRITICAL_PATH_LEAVES: [], CRITICAL_PATHS: [path]}
        upstreams = leading_to((walk.steps[-1].operator for walk in walks), finished.upstreams)
        critical, slack = critical_path(upstreams, steps), slack_ms(upstreams, finished.ewt_ms, steps)
        slowest = {name: up for name in upstreams if (up := steps[name].slowest_upstream)}
        averaged = stram.critical_path(upstreams, slowest, average_ms)
        return {
            CRITICAL_PATH_STEPS: [
                self._step(step, critical, slack.get(name), finished) | spent[name] for name, step in steps.items()
            ],
            CRITICAL_PATH_LEAVES: [self._leaf(walk, critical, finished) for walk in walks],
            CRITICAL_PATHS: [self._path(critical, averaged, spent, finished)],
        }

    def _walks(self, finished: Finished, steps: Mapping[str, Step]) -> list[Path]:
        """The walks to terminal operators; none while the window is open."""
        walks = [path_to(name, steps) for name in finished.ends]
        settled = [walk for walk in walks if walk.steps[0].operator in finished.did and _is_settled(walk)]
        ahead_ms = max(self._newest_ms.values(), default=0) - finished.window[2]
        waits = len(settled) < len(walks) and ahead_ms <= self._limits.heartbeat_timeout_ms
        return [] if waits else settled

    def _spent(self, step: Step, did: Mapping[str, Did]) -> Row:
        """`waited_ms`, `queued_ms` and `worked_ms`; None without a latency, or where no row says."""
        if step.latency_ms is None:
            return dict.fromkeys(("waited_ms", "queued_ms", "worked_ms"))
        if step.operator not in did:
            return {"waited_ms": step.latency_ms, "queued_ms": 0, "worked_ms": 0}
        own = did[step.operator]
        before_ms: int | None = 0
        if step.slowest_upstream is not None:
            before_ms = None if own.began_ms is None else own.began_ms - did[step.slowest_upstream].ewt_ms
        of = parts(step.latency_ms, before_batch_ms=before_ms or 0, queued_ms=own.queued_ms or 0)
        waited_ms = None if before_ms is None else of.waited_ms
        queued_ms = None if own.queued_ms is None else of.queued_ms
        worked_ms = None if waited_ms is None or queued_ms is None else of.worked_ms
        return {"waited_ms": waited_ms, "queued_ms": queued_ms, "worked_ms": worked_ms}

    def _step(self, step: Step, critical: Path | None, slack: int | None, finished: Finished) -> Row:
        walk = [each.operator for each in critical.steps] if critical else []
        place = walk.index(step.operator) if step.operator in walk else None
        at = finished.places[step.operator]
        return {
            "operator": step.operator,
            "step": place,
            "slowest_upstream": step.slowest_upstream,
            "latency_ms": step.latency_ms,
            "share": critical.share_of(step.operator) if critical else None,
            "slack_ms": slack,
            "state": step.state.value,
            "sub_topology": at.sub_topology,
            "kind": at.kind,
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
        timed = [step.operator for step in critical.steps if step.latency_ms is not None]
        before_source_ms, sla_ms = _before_source_ms(critical, finished), self._promises.end_to_end_ms.get(walk[-1])
        return {
            "latency_ms": critical.latency_ms,
            "queued_ms": _sum(spent[name]["queued_ms"] for name in timed),
            "before_source_ms": before_source_ms,
            "leaf": walk[-1],
            "path": str(critical),
            "state": critical.state.value,
            "waited_ms": _sum(spent[name]["waited_ms"] for name in timed),
            "sla_ms": sla_ms,
            "over_sla": None,
            "skew_error_ms": _skew_error_ms([finished.did[name] for name in walk if name in finished.did]),
            "moving_average_ms": averaged.latency_ms,
            "moving_average_path": str(averaged),
        }


def _is_settled(walk: Path) -> bool:
    """Whether the whole *walk* is measured, or it is known which driver stands still."""
    return walk.is_complete or any(step.state in STANDS_STILL for step in walk.steps)


def _averages(windows: Iterable[Iterable[Step]]) -> dict[str, int]:
    """Apex's: the mean of each operator's latencies in *windows*, truncated; an input's is 0."""
    samples_ms: dict[str, list[int]] = {}
    for steps in windows:
        for step in steps:
            if step.latency_ms is not None and step.state not in STANDS_STILL:
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
