"""Defines the metrics: names, types, units, labels and source tables.

docs/metrics.md, the Grafana dashboard and the rules have only these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidemark.collecting import index_by_name


class MetricType(StrEnum):
    """Types of metrics, in OpenMetrics' words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    STATESET = "stateset"


@dataclass(frozen=True)
class Metric:
    """A metric: its name, type, labels, source and meaning.

    The name ends with the unit. All metrics have the label `topology`, except those about the exporter.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    source: str
    meaning: str

    @property
    def unit(self) -> str:
        """The unit: seconds or ratio; empty for numbers."""
        unit = self.name.rpartition("_")[2]
        return unit if unit in {"seconds", "ratio"} else ""


PARTITION = ("topology", "sub_topology", "source", "partition")
STREAM = ("topology", "sub_topology")
SLA = ("topology", "sla", "subject", "measure")
G, C, H, S = MetricType.GAUGE, MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.STATESET
_ALL = (
    Metric("tidemark_readable", G, ("topology",), "all", "1: the tables of the topology could be read; 0: not"),
    Metric(
        "tidemark_stream_state", S, STREAM, "heartbeats, control folder",
        "state of a stream, in the label of the same name: 1 for the present state, 0 for the others",
    ),
    Metric("tidemark_heartbeat_age_seconds", G, STREAM, "heartbeats, control folder", "age of the newest heartbeat"),
    Metric(
        "tidemark_behind_records", G, STREAM, "heartbeats", "unread records of the stream's topics after its last batch"
    ),
    Metric(
        "tidemark_catch_up_seconds", G, STREAM, "heartbeats",
        "estimated time until the stream has read all; no series unless it catches up",
    ),
    Metric(
        "tidemark_open_incidents", G, ("topology", "severity"), "incidents", "open incidents by their worst severity"
    ),
    Metric(
        "tidemark_sla_level", G, SLA, "sla_results",
        "newest check of an SLA: 0 holds, 1 warning, 2 broken; no series while it is unknown or excluded",
    ),
    Metric("tidemark_sla_observed_seconds", G, SLA, "sla_results", "length that the newest check measured"),
    Metric(
        "tidemark_sla_cause_ratio", G, ("topology", "sla", "owner", "detail"), "sla_results",
        "share of a cause in what broke an SLA, by the newest check, 0 to 1; no series while no cause is known",
    ),
    Metric("tidemark_check_age_seconds", G, ("topology",), "sla_results", "age of the newest check of SLAs"),
    Metric(
        "tidemark_budget_left_ratio", G, ("topology", "objective", "subject"), "sla_results",
        "unused share of the error budget of an objective; below 0: exceeded",
    ),
    Metric(
        "tidemark_complete_lag_seconds", G, ("topology", "operator", "table"), "completeness",
        "distance from the end of the newest complete interval to now",
    ),
    Metric(
        "tidemark_reopened_intervals", G, ("topology", "operator", "table"), "completeness",
        "intervals that got results after they were complete, of those that the table has",
    ),
    Metric(
        "tidemark_recent_latency_seconds", G, ("topology", "operator", "percentile"), "latency_minutes",
        "p50, p90 or p99 of the end-to-end latency of the five minutes before the newest result, at most 1 % off; no "
        "series if these results are older than five minutes",
    ),
    Metric(
        "tidemark_updates", C, ("topology", "operator", "outcome"), "operator_batches, batches",
        "updates of an operator by outcome, since the hour of the newest batch began",
    ),
    Metric(
        "tidemark_latency_seconds", H, ("topology", "operator"), "latency_minutes",
        "end-to-end latency of the records of an operator, since the hour of the newest result began",
    ),
    Metric(
        "tidemark_watermark_lag_seconds", G, PARTITION, "partition_batches",
        "distance from the watermark of an input partition to now; of a query of a job that of the query, with an "
        "empty partition",
    ),
    Metric(
        "tidemark_unread_records", G, PARTITION, "partition_batches",
        "records of a partition that the last batch left unread",
    ),
    Metric(
        "tidemark_dropped_series", G, ("topology",), "all", "series that were left out as the topology has too many"
    ),
)  # fmt: skip
METRICS = index_by_name(_ALL)
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The quantiles of tidemark_recent_latency_seconds."""
"""The metrics in order.

If a topology has too many series, those of the last ones are left out.
"""
