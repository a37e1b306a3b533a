"""Estimates how far the clocks of worker hosts are from the driver's.

Purpose: starts and ends that tasks on different hosts report become comparable.
How it works: all tasks of a batch start and end while their driver waits for them, and no shard is worked on before all
partitions were taken in. This bounds the offset of each host's clock (`semantics.skew`) without a request. Each batch
narrows the bounds.
Known limitation: the bounds are as wide as Spark takes to start a job and to return its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tidemark.semantics.skew import Bounds, HostWork, Skew, bounds_of_work
from tidemark.stream.driver.heartbeats import EVERY_MS, ClockOffset, ClockOffsets
from tidemark.stream.journal.task_run import TaskRun

ONE_CLOCK = Bounds(low_ms=0, high_ms=0)


class HostClocks:
    """Estimates how far the clocks of other hosts are from the clock of *host*, the driver's.

    Estimates are added to *offsets*, for each host at most one in EVERY_MS.
    """

    def __init__(self, host: str, offsets: ClockOffsets) -> None:
        self._host, self._offsets = host, offsets
        self._bounds: dict[str, Bounds] = {host: ONE_CLOCK}
        self._ended_ms: int | None = None
        self._kept_at_ms: dict[str, int] = {}

    def adjusted(self, runs: Sequence[TaskRun], *, began_ms: int, ended_ms: int) -> list[TaskRun]:
        """Returns *runs* of a batch, each with the skew of its host.

        The driver's clock read *began_ms* before the tasks and *ended_ms* after all of them.
        """
        passed_ms = 0 if self._ended_ms is None else ended_ms - self._ended_ms
        # Clocks drift, so bounds widen with the time that has passed.
        earlier = {host: bounds.after(passed_ms) for host, bounds in self._bounds.items()} | {self._host: ONE_CLOCK}
        # Spark begins the second stage when all tasks of the first have ended, which is what bounds the clocks.
        stages = [_spans(runs, taking_in=True), _spans(runs, taking_in=False)]
        bounds_of_hosts = dict(bounds_of_work(stages, began_ms=began_ms, ended_ms=ended_ms, skews=earlier))
        bounds_of_hosts[self._host] = ONE_CLOCK
        self._bounds = earlier | bounds_of_hosts
        # A host whose clock was set has bounds that exclude each other: its estimate begins anew.
        contradicted = set[str]().union(*stages) - bounds_of_hosts.keys()
        for host in contradicted:
            self._bounds.pop(host, None)
        self._ended_ms = ended_ms
        skews = {host: bounds.skew for host, bounds in bounds_of_hosts.items()}
        self._keep(skews, runs, ended_ms)
        # No run gets a skew unless all hosts have bounds: instants of two kinds could not be compared.
        return [*runs] if contradicted else [_with_skew(run, skews[run.host]) for run in runs]

    def _keep(self, skews: Mapping[str, Skew], runs: Sequence[TaskRun], at_ms: int) -> None:
        """Adds those of *skews*, by host, to the offsets that are due at *at_ms*; *runs* count as samples."""
        due: list[str] = []
        for host in skews:
            age_ms = at_ms - self._kept_at_ms.get(host, at_ms - EVERY_MS)
            # A clock that was set back would otherwise stop the history until it catches up.
            if host != self._host and not 0 <= age_ms < EVERY_MS:
                due.append(host)
        self._kept_at_ms |= dict.fromkeys(due, at_ms)
        for host in due:
            reports = sum(run.host == host for run in runs)
            self._offsets.add(
                ClockOffset(
                    host=host,
                    estimated_at_ms=at_ms,
                    skew=skews[host],
                    samples=reports,
                    reference=self._host,
                )
            )


def _spans(runs: Iterable[TaskRun], *, taking_in: bool) -> dict[str, HostWork]:
    """Returns the span of each host's work in a stage of *runs*.

    In the first stage tasks are *taking_in* partitions; in the other they work on shards.
    """
    spans: dict[str, HostWork] = {}
    for run in runs:
        # Only tasks that take in partitions have no shard.
        if (run.shard is None) is not taking_in:
            continue
        span = spans.get(run.host, HostWork(first_ms=run.started_at_ms, last_ms=run.finished_at_ms))
        first_ms, last_ms = min(span.first_ms, run.started_at_ms), max(span.last_ms, run.finished_at_ms)
        spans[run.host] = HostWork(first_ms=first_ms, last_ms=last_ms)
    return spans


def _with_skew(run: TaskRun, skew: Skew) -> TaskRun:
    return replace(run, skew_ms=skew.evident_ms, skew_error_ms=skew.error_ms)
