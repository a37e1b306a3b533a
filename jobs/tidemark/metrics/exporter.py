"""Collects the metrics of topologies for `prometheus-client`.

Values come from Delta tables and control folders only; no process has to run beside the streams. Counters begin with an
hour (UTC) of the drivers' finish clock, so every exporter of a warehouse has the same values, and its restart changes
none. Prometheus takes the new hour for a restart of the counter.
Clock: the one of this process, for ages and lags; that of the drivers for latencies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

import polars as pl
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    StateSetMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tidemark.clock import Clock, wall_clock_ms
from tidemark.collecting import names_in, outside
from tidemark.facts.alerts import budgets
from tidemark.facts.checks import of_newest
from tidemark.facts.fact_tables import FactTables
from tidemark.facts.kept_rows import TableRows, Version
from tidemark.facts.stream_facts import StreamFacts
from tidemark.metrics.catalog import METRICS, Metric, MetricType
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Grain, utc
from tidemark.model.sla_event_rows import causes_of_row
from tidemark.model.sla_spec import Severity
from tidemark.model.tables.catalog import (
    BATCHES,
    BECAME,
    COMPLETENESS,
    INCIDENTS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    SLA_RESULTS,
    Table,
)
from tidemark.model.topology import Topology
from tidemark.semantics.buckets import GAMMA, quantile, value_of
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.liveness import Liveness
from tidemark.semantics.sla import Verdict
from tidemark.why.evidence.snapshot import Scene

log = logging.getLogger(__name__)
MOST_SERIES = 2_000
"""Most series of one topology."""
RECENT_MS = 300_000
"""Quantiles are of the records of so many ms."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
EDGES = (0, *range(1, 842, 35))
"""Upper buckets of the histogram.

They stand for 0 ms, 1 ms, 2 ms, 4 ms and so on, to 4.6 hours.

They are edges of our own buckets, so that counts are exact. 1.02^35 is 2.0.
"""
FAMILIES: Mapping[MetricType, Callable[..., Any]] = MappingProxyType(
    {
        MetricType.GAUGE: GaugeMetricFamily,
        MetricType.COUNTER: CounterMetricFamily,
        MetricType.HISTOGRAM: HistogramMetricFamily,
        MetricType.STATESET: StateSetMetricFamily,
    }
)
# What a person's change of a topology drops is told once, and is no rate.
WORDS = outside(BECAME, ("dropped", "held_after"))
"""Outcomes of updates; updates that are still held have none."""
HOUR_MS = Grain.HOUR.length_ms


class Sample(NamedTuple):
    """A value of a metric with the values of its labels.

    A state set has a dictionary of states as its value, and a histogram counts by upper edge (s) with the sum (s). An
    age is counted from *age_of_ms*, and a value is left out after *until_ms*, epoch ms. *since_s* is when a counter
    began, epoch s.
    """

    metric: str
    labels: tuple[str, ...]
    value: Any = None
    since_s: float | None = None
    age_of_ms: int | None = None
    until_ms: int | None = None

    def at(self, now_ms: int) -> Sample:
        """Returns the sample with its age at *now_ms*."""
        return self if self.age_of_ms is None else self._replace(value=(now_ms - self.age_of_ms) / 1000)

    @property
    def series(self) -> int:
        """The number of series in OpenMetrics, with those of the beginning."""
        match METRICS[self.metric].type:
            case MetricType.STATESET:
                return len(self.value)
            case MetricType.HISTOGRAM:
                return len(self.value[0]) + 3
            case MetricType.COUNTER:
                return 2
        return 1


Rows = Callable[[Table], pl.DataFrame]
"""Returns the rows of a table that metrics need, of all streams."""
SamplesOf = Callable[[Scene, Rows], Iterator[Sample]]


class Exporter(Collector):
    """Collects the metrics of *topologies* in the warehouse of *layout*.

    *topologies* returns those that exist now. It is safe for several threads. A topology that cannot be read has
    `tidemark_readable` 0 and hides no other. *clock* returns epoch ms.
    """

    def __init__(
        self, layout: Layout, topologies: Callable[[], Iterable[Topology]], *, clock: Clock = wall_clock_ms
    ) -> None:
        self._layout, self._topologies, self._clock = layout, topologies, clock
        self._rows, self._lock = TableRows(), Lock()
        self._kept: dict[tuple[str, SamplesOf], tuple[list[Version], list[Sample]]] = {}

    def collect(self) -> Iterator[Family]:
        """Yields the metrics, each with the series of all topologies."""
        return families(self.samples())

    def describe(self) -> list[Family]:
        """Returns nothing: to register the exporter reads no table."""
        return []

    def of(self, names: Container[str]) -> Exporter:
        """Returns an exporter of the topologies in *names*."""
        some = copy(self)
        some._topologies = lambda: (each for each in self._topologies() if each.name in names)
        return some

    def samples(self) -> list[Sample]:
        """Returns the samples of all topologies.

        A topology has at most MOST_SERIES series.
        """
        with self._lock:
            now_ms = self._clock()
            return [sample for topology in self._topologies() for sample in self._of(topology, now_ms)]

    def _of(self, topology: Topology, now_ms: int) -> list[Sample]:
        try:
            samples = [Sample("tidemark_readable", (topology.name,), 1), *self._read(topology, now_ms)]
        except Exception:  # one topology that cannot be read must not hide the others
            log.exception("the metrics of %s cannot be read", topology.name)
            return [Sample("tidemark_readable", (topology.name,), 0)]
        order = [*METRICS]
        samples.sort(key=lambda sample: order.index(sample.metric))
        kept, dropped, room = list[Sample](), 0, MOST_SERIES - 1  # one for the number of dropped series
        for sample in samples:
            if dropped or sample.series > room:
                dropped += sample.series
            else:
                room -= sample.series
                kept.append(sample)
        return [*kept, Sample("tidemark_dropped_series", (topology.name,), dropped)]

    def _read(self, topology: Topology, now_ms: int) -> Iterator[Sample]:
        snapshot, facts, homes = self._rows.snapshot(), dict[str, StreamFacts](), list[Path]()
        for sub in topology.sub_topologies:
            homes.append(self._layout.stream(topology.name, sub.name))
            control = self._layout.control(topology.name, sub.name)
            tables = FactTables(snapshot.opener_of_kept(homes[-1]), now_ms)
            facts[sub.name] = StreamFacts(tables, homes[-1], control, topology.trigger_ms)
            # The state of a stream also follows from silence, so it is judged at each scrape.
            yield from _of_stream((topology.name, sub.name), facts[sub.name], now_ms)
        scene = Scene(topology, facts, now_ms)

        def paths(table: Table) -> list[Path]:
            if table.written_by != "stream":
                return [self._layout.report_table(topology.name, table.name)]
            return [home / table.name for home in homes]

        def rows(table: Table) -> pl.DataFrame:
            return pl.concat(snapshot.rows(table, path) for path in paths(table))

        for samples_of, needed in PARTS.items():
            versions = [snapshot.version(path) for table in needed for path in paths(table)]
            kept = self._kept.get((topology.name, samples_of))
            if kept is None or kept[0] != versions:
                kept = versions, [*samples_of(scene, rows)]
                # A batch that a driver's clock puts later than ours counts when our clock is there.
                if BATCHES not in needed or not (rows(BATCHES)["finished_at"] > utc(now_ms)).any():
                    self._kept[topology.name, samples_of] = kept
            yield from (each.at(now_ms) for each in kept[1] if each.until_ms is None or now_ms <= each.until_ms)


def _of_stream(labels: tuple[str, str], facts: StreamFacts, now_ms: int) -> Iterator[Sample]:
    present = facts.driver.liveness
    yield Sample("tidemark_stream_state", labels, {each.value: each is present for each in Liveness})
    beat = facts.driver.beat
    if beat is None:
        return
    yield Sample("tidemark_heartbeat_age_seconds", labels, (now_ms - beat.at_ms) / 1000)
    if beat.records_behind is not None:
        yield Sample("tidemark_behind_records", labels, beat.records_behind)
    if present is Liveness.CATCHING_UP and beat.eta_at_ms is not None:
        yield Sample("tidemark_catch_up_seconds", labels, max(0, beat.eta_at_ms - now_ms) / 1000)


def _of_partitions(scene: Scene, _: Rows) -> Iterator[Sample]:
    for sub in scene.topology.sub_topologies:
        sources = names_in(sub.outside_sources)
        # Nothing is read of a stream without sources from outside.
        marks = scene.facts[sub.name].marks if sources else {}
        # Spark has one watermark for a whole query of a job.
        named = {
            (source, "" if number is None else str(number)): mark
            for (source, number), mark in marks.items()
            if source in sources and (number is not None or scene.topology.jobs)
        }
        for (source, partition), mark in sorted(named.items(), key=lambda each: each[0]):
            labels = (scene.topology.name, sub.name, source, partition)
            if mark.watermark_ms is not None:
                yield Sample("tidemark_watermark_lag_seconds", labels, age_of_ms=mark.watermark_ms)
            if mark.unread is not None:
                yield Sample("tidemark_unread_records", labels, mark.unread)


def _of_latency(scene: Scene, rows: Rows) -> Iterator[Sample]:
    """Yields quantiles and histograms by operator."""
    buckets = rows(LATENCY_MINUTES)
    if buckets.is_empty():
        return
    newest_ms = _ms(buckets["finished_at"].max())  # type: ignore[arg-type]
    at_ms = pl.col("finished_at").dt.epoch("ms")
    # Each collected frame takes 0.3 ms, however few its rows are.
    counts = buckets.lazy().group_by("operator", "bucket").agg(
        hour=pl.col("n").filter(at_ms >= newest_ms // HOUR_MS * HOUR_MS).sum(),
        recent=pl.col("n").filter(at_ms > newest_ms - RECENT_MS).sum(),
    ).sort("operator", "bucket").select("operator", "bucket", "hour", "recent").collect()  # fmt: skip
    for operator, group in groupby(counts.rows(), itemgetter(0)):
        labels, of_operator = (scene.topology.name, str(operator)), [*group]
        recent = [(bucket, n) for _, bucket, _, n in of_operator]
        for name, q in PERCENTILES.items():
            if (latency_ms := quantile(recent, q)) is not None:
                value, until_ms = latency_ms / 1000, newest_ms + RECENT_MS
                yield Sample("tidemark_recent_latency_seconds", (*labels, name), value, until_ms=until_ms)
        hour = [(bucket, n) for _, bucket, n, _ in of_operator if n]
        if hour:
            by_edge = [(_edge_s(edge), sum(n for bucket, n in hour if bucket <= edge)) for edge in EDGES]
            by_edge.append(("+Inf", sum(n for _, n in hour)))
            total_s = sum(value_of(bucket) * n for bucket, n in hour) / 1000
            yield Sample("tidemark_latency_seconds", labels, (by_edge, total_s), newest_ms // HOUR_MS * HOUR_MS / 1000)


def _edge_s(bucket: int) -> str:
    """Returns the largest value in *bucket*, s, as a label of Prometheus.

    >>> _edge_s(0), _edge_s(1), _edge_s(36)
    ('0.0', '0.001', '0.00199989')
    """
    return f"{GAMMA ** (bucket - 1) / 1000:.6g}" if bucket else "0.0"


def _of_outcomes(scene: Scene, rows: Rows) -> Iterator[Sample]:
    batch, at_ms = ["sub_topology", "batch_id"], pl.col("finished_at").dt.epoch("ms")
    batches = rows(BATCHES).lazy().select(*batch, at_ms=at_ms)
    outcomes = rows(OPERATOR_BATCHES).lazy().join(batches, on=batch)
    in_hours = outcomes.with_columns(hour_ms=pl.col("at_ms").max() // HOUR_MS * HOUR_MS)
    newest = in_hours.filter(pl.col("at_ms") >= pl.col("hour_ms")).group_by("operator", "hour_ms")
    sums = newest.agg(pl.col(WORDS).sum()).sort("operator").collect()
    for row in sums.iter_rows(named=True):
        for outcome in WORDS:
            labels = (scene.topology.name, row["operator"], outcome)
            yield Sample("tidemark_updates", labels, row[outcome], row["hour_ms"] / 1000)


def _of_completeness(scene: Scene, rows: Rows) -> Iterator[Sample]:
    by_table = rows(COMPLETENESS).lazy().group_by("operator", "table").agg(
        end=pl.col("interval_end").dt.epoch("ms").max(), reopened=pl.col("reopened_at").is_not_null().sum()
    )  # fmt: skip
    for operator, table, end_ms, reopened in by_table.sort("operator", "table").collect().rows():
        of_table = (scene.topology.name, operator, table)
        yield Sample("tidemark_complete_lag_seconds", of_table, age_of_ms=end_ms)
        yield Sample("tidemark_reopened_intervals", of_table, reopened)


def _of_checks(scene: Scene, rows: Rows) -> Iterator[Sample]:
    topology, results = scene.topology.name, rows(SLA_RESULTS)
    if results.is_empty():
        return
    checks = of_newest(results).sort("sla").to_dicts()
    for row in checks:
        labels = (topology, row["sla"], row["subject"], row["measure"])
        if row["excluded_because"] is None and row["verdict"] != Verdict.UNKNOWN:
            level = 0 if row["verdict"] not in BROKEN else 1 if row["verdict"] == Verdict.WARN else 2
            yield Sample("tidemark_sla_level", labels, level)
        if row["observed_ms"] is not None:
            yield Sample("tidemark_sla_observed_seconds", labels, row["observed_ms"] / 1000)
        for cause in causes_of_row(row):
            if cause.share is not None:
                named = (topology, row["sla"], cause.owner, cause.detail or "")
                yield Sample("tidemark_sla_cause_ratio", named, cause.share)
    yield Sample("tidemark_check_age_seconds", (topology,), age_of_ms=_ms(checks[0]["checked_at"]))
    for row in budgets(checks):
        if row["budget_left"] is not None:
            of_objective = (topology, row["objective"], row["subject"])
            yield Sample("tidemark_budget_left_ratio", of_objective, row["budget_left"])


def _of_incidents(scene: Scene, rows: Rows) -> Iterator[Sample]:
    by_incident = (
        rows(INCIDENTS)
        .lazy()
        .sort("changed_at")
        .group_by("incident")
        .agg(
            severity=pl.col("severity").filter(pl.col("change").is_in(["opened", "escalated"])).last(),
            is_open=~(pl.col("change") == "resolved").any(),
        )
    )
    open_now = by_incident.filter("is_open").collect()["severity"].to_list()
    for severity in Severity:
        labels = (scene.topology.name, severity.value)
        yield Sample("tidemark_open_incidents", labels, open_now.count(severity.value))


PARTS: Mapping[SamplesOf, tuple[Table, ...]] = MappingProxyType(
    {
        _of_partitions: (BATCHES, PARTITION_BATCHES),
        _of_latency: (LATENCY_MINUTES,),
        _of_outcomes: (OPERATOR_BATCHES, BATCHES),
        _of_completeness: (COMPLETENESS,),
        _of_checks: (SLA_RESULTS,),
        _of_incidents: (INCIDENTS,),
    }
)
"""The parts of a scrape, with the tables that they need."""


def families(samples: Iterable[Sample]) -> Iterator[Family]:
    """Yields *samples* as families of `prometheus-client`, in the order of the catalog."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for metric in METRICS.values():
        if metric.name in by_metric:
            yield _family(metric, by_metric[metric.name])


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    family: Any = FAMILIES[metric.type](metric.name, metric.meaning, labels=metric.labels)
    family.unit = metric.unit  # the name already ends with it
    for sample in samples:
        match family:
            case HistogramMetricFamily():
                family.add_metric(sample.labels, *sample.value)
                of_series = dict(zip(metric.labels, sample.labels, strict=True))
                family.add_sample(f"{metric.name}_created", of_series, sample.since_s or 0)
            case CounterMetricFamily():
                family.add_metric(sample.labels, sample.value, created=sample.since_s)
            case _:
                family.add_metric(sample.labels, sample.value)
    whole: Family = family
    return whole


def _ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
