"""Pushes the metrics to an OpenTelemetry collector, by OTLP over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tidemark.metrics.catalog import MetricType, ProposedName, Sample, metrics
from tidemark.metrics.exporter import Exporter

NS = 1_000_000_000


class OtlpExporter:
    """Pushes the samples of *exporter* to *url*, for example http://collector:4318/v1/metrics.

    The environment variables of OpenTelemetry's exporter hold for headers, certificates and time limits.
    """

    def __init__(self, exporter: Exporter, url: str) -> None:
        self._exporter, self._otlp = exporter, OTLPMetricExporter(endpoint=url)

    def push(self) -> bool:
        """Pushes all samples once; returns False if they were refused."""
        pushed = [*otlp_metrics(self._exporter.samples(), time.time_ns())]
        scope = ScopeMetrics(scope=InstrumentationScope("tidemark"), metrics=pushed, schema_url="")
        resource = Resource.create({"service.name": "tidemark"})
        whole = ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")
        return self._otlp.export(MetricsData(resource_metrics=[whole])) is MetricExportResult.SUCCESS


def otlp_metrics(samples: Iterable[Sample], now_ns: int) -> Iterator[Metric]:
    """Yields *samples* as OpenTelemetry's metrics at *now_ns*, epoch ns."""
    by_metric: dict[str, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    for name, of_metric in by_metric.items():
        metric = metrics()[name]
        data: Gauge | Sum | Histogram
        match metric.type:
            case MetricType.HISTOGRAM:
                points = [_histogram_point(sample, now_ns) for sample in of_metric]
                data = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
            case MetricType.COUNTER:
                numbers = [point for sample in of_metric for point in _points(sample, now_ns)]
                data = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
            case _:
                data = Gauge([point for sample in of_metric for point in _points(sample, now_ns)])
        unit = {"seconds": "s", "ratio": "1"}.get(metric.unit, "")
        yield Metric(name=name, description=metric.meaning, unit=unit, data=data)
        if metric.proposed is not None:
            proposed = Gauge([_proposed_point(sample, metric.proposed, now_ns) for sample in of_metric])
            yield Metric(name=metric.proposed.name, description=metric.meaning, unit=unit, data=proposed)


def _points(sample: Sample, now_ns: int) -> Iterator[NumberDataPoint]:
    states = sample.value if isinstance(sample.value, dict) else {None: sample.value}
    since_ns = None if sample.since_s is None else round(sample.since_s * NS)
    for state, value in states.items():
        attributes = _attributes(sample) | ({} if state is None else {sample.metric: state})
        yield NumberDataPoint(attributes, since_ns, now_ns, float(value))  # type: ignore[arg-type]  # a gauge has no beginning


def _proposed_point(sample: Sample, proposed: ProposedName, now_ns: int) -> NumberDataPoint:
    own = _attributes(sample)
    attributes = {**proposed.same, **{name: own[label] for label, name in proposed.attributes.items()}}
    return NumberDataPoint(attributes, None, now_ns, float(sample.value))  # type: ignore[arg-type]  # a gauge has no beginning


def _histogram_point(sample: Sample, now_ns: int) -> HistogramDataPoint:
    by_edge, total_s = sample.value
    counts = [0, *(n for _, n in by_edge)]
    return HistogramDataPoint(
        attributes=_attributes(sample),
        start_time_unix_nano=round((sample.since_s or 0) * NS),
        time_unix_nano=now_ns,
        count=counts[-1],
        sum=total_s,
        bucket_counts=[after - before for before, after in pairwise(counts)],
        explicit_bounds=[float(edge) for edge, _ in by_edge[:-1]],
        min=None,  # type: ignore[arg-type]  # unknown, and optional
        max=None,  # type: ignore[arg-type]
    )


def _attributes(sample: Sample) -> dict[str, str]:
    return dict(zip(metrics()[sample.metric].labels, sample.labels, strict=True))
