"""Collects the metrics of topologies for `prometheus-client`.

Values come from Delta tables and control folders only; no process has to run beside the streams. Counters begin with an
hour (UTC) of the drivers' finish clock, so every exporter of a warehouse has the same values, and its restart changes
none. Prometheus takes the new hour for a restart of the counter.
Clock: this process's for ages and lags, the drivers' for latencies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

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
from tidemark.facts.fact_tables import FactTables
from tidemark.facts.kept_rows import TableRows, Version
from tidemark.facts.stream_facts import StreamFacts
from tidemark.metrics.catalog import DROPPED, GROUPS, READABLE, Metric, MetricGroup, MetricType, Rows, Sample, metrics
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.tables.catalog import BATCHES, Table
from tidemark.model.topology import Topology
from tidemark.why.evidence.snapshot import Scene

log = logging.getLogger(__name__)
MOST_SERIES = 2_000
"""Most series of one topology."""
FAMILIES: Mapping[MetricType, Callable[..., Any]] = MappingProxyType(
    {
        MetricType.GAUGE: GaugeMetricFamily,
        MetricType.COUNTER: CounterMetricFamily,
        MetricType.HISTOGRAM: HistogramMetricFamily,
        MetricType.STATESET: StateSetMetricFamily,
    }
)


class Exporter(Collector):
    """Collects the metrics of *topologies* in the warehouse of *layout*.

    *topologies* returns those that exist now. Several threads may use one exporter. A topology that cannot be read has
    `tidemark_readable` 0 and hides no other. *clock* returns epoch ms.
    """

    def __init__(
        self, layout: Layout, topologies: Callable[[], Iterable[Topology]], *, clock: Clock = wall_clock_ms
    ) -> None:
        self._layout, self._topologies, self._clock = layout, topologies, clock
        self._rows, self._lock = TableRows(), Lock()
        self._kept: dict[tuple[str, str], tuple[list[Version], list[Sample]]] = {}

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
        """Returns the samples of all topologies. A topology has at most MOST_SERIES series."""
        with self._lock:
            now_ms = self._clock()
            return [sample for topology in self._topologies() for sample in self._of(topology, now_ms)]

    def _of(self, topology: Topology, now_ms: int) -> list[Sample]:
        try:
            samples = [Sample(READABLE.name, (topology.name,), 1), *self._read(topology, now_ms)]
        except Exception:  # one topology that cannot be read must not hide the others
            log.exception("the metrics of %s cannot be read", topology.name)
            return [Sample(READABLE.name, (topology.name,), 0)]
        order = [*metrics()]
        samples.sort(key=lambda sample: order.index(sample.metric))
        kept, dropped, room = list[Sample](), 0, MOST_SERIES - 1  # one for the number of dropped series
        for sample in samples:
            if dropped or sample.series > room:
                dropped += sample.series
            else:
                room -= sample.series
                kept.append(sample)
        return [*kept, Sample(DROPPED.name, (topology.name,), dropped)]

    def _read(self, topology: Topology, now_ms: int) -> Iterator[Sample]:
        snapshot, facts, homes = self._rows.snapshot(), dict[str, StreamFacts](), list[Path]()
        for sub in topology.sub_topologies:
            homes.append(self._layout.stream(topology.name, sub.name))
            control = self._layout.control(topology.name, sub.name)
            tables = FactTables(snapshot.opener_of_kept(homes[-1]), now_ms)
            facts[sub.name] = StreamFacts(tables, homes[-1], control, topology.trigger_ms)
        scene = Scene(topology, facts, now_ms)

        def paths(table: Table) -> list[Path]:
            if table.written_by != "stream":
                return [self._layout.report_table(topology.name, table.name)]
            return [home / table.name for home in homes]

        def rows(table: Table) -> pl.DataFrame:
            return pl.concat(snapshot.rows(table, path) for path in paths(table))

        for name, group in GROUPS.items():
            if group.topology not in {None, topology.name}:
                continue
            # Watched tables have no streams.
            if not homes and any(table.written_by == "stream" for table in group.needs):
                continue
            versions = [snapshot.version(path) for table in group.needs for path in paths(table)]
            kept = self._kept.get((topology.name, name))
            if kept is None or kept[0] != versions or group.every_scrape:
                kept = versions, [*_samples(group, scene, rows)]
                # A batch that a driver's clock puts later than ours counts when our clock is there.
                if BATCHES not in group.needs or not (rows(BATCHES)["finished_at"] > utc(now_ms)).any():
                    self._kept[topology.name, name] = kept
            yield from (each.at(now_ms) for each in kept[1] if each.until_ms is None or now_ms <= each.until_ms)


def _samples(group: MetricGroup, scene: Scene, rows: Rows) -> Iterator[Sample]:
    """Yields the samples of *group* whose metrics are declared."""
    for sample in group.samples(scene, rows):
        if sample.metric in metrics():
            yield sample
        else:
            log.error("the group %s declares no metric %s: it is left out", group.name, sample.metric)


def families(samples: Iterable[Sample]) -> Iterator[Family]:
    """Yields *samples* as families of `prometheus-client`, in the order of the catalog."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for metric in metrics().values():
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
