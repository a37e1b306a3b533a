"""Defines what a metric is: name, type, unit, labels and source tables; and the open list of their groups.

A file of `metrics/groups` that registers a MetricGroup is all that new metrics need, also one of another package, as an
entry point of the group `tidemark.metrics`. docs/metrics.md and the Grafana dashboard have only these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidemark.extensions import OpenList
from tidemark.selection import index_by_name

if TYPE_CHECKING:
    import polars as pl

    from tidemark.model.tables.catalog import Table
    from tidemark.why.evidence.snapshot import Scene


class MetricType(StrEnum):
    """Types of metrics, in OpenMetrics' words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    STATESET = "stateset"


@dataclass(frozen=True, kw_only=True)
class ProposedName:
    """The name that a proposal to OpenTelemetry's conventions has for a metric; it is pushed under both.

    `attributes` are by label, and `same` are equal for all series.
    """

    name: str
    attributes: Mapping[str, str]
    same: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric.

    Attributes:
        name: its name, which ends with the unit.
        type: gauge, counter, histogram or state set.
        labels: its labels, of which the first is `topology`.
        source: the tables that it comes from, for docs/metrics.md.
        meaning: what it says.
        rank: its position. If a topology has too many series, those of the last metrics are left out.
        proposed: its other name in OpenTelemetry, or None.
    """

    name: str
    type: MetricType
    labels: tuple[str, ...]
    source: str
    meaning: str
    rank: int
    proposed: ProposedName | None = None

    @property
    def unit(self) -> str:
        """The unit, seconds or ratio, or empty for numbers."""
        unit = self.name.rpartition("_")[2]
        return unit if unit in {"seconds", "ratio"} else ""


PARTITION = ("topology", "sub_topology", "source", "partition")
STREAM = ("topology", "sub_topology")
SLA = ("topology", "sla", "subject", "measure")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""The quantiles of tidemark_recent_latency_seconds."""


class Sample(NamedTuple):
    """A value of a metric with the values of its labels.

    The value of a state set is a dictionary of states; that of a histogram has counts by upper edge (s), and the sum
    (s). *since_s* is when a counter began, epoch s. The value of an age is the time since *age_of_ms*. A value is left
    out after *until_ms*, epoch ms.
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
        """The number of series in OpenMetrics, including those that say when a counter began."""
        match metrics()[self.metric].type:
            case MetricType.STATESET:
                return len(self.value)
            case MetricType.HISTOGRAM:
                return len(self.value[0]) + 3
            case MetricType.COUNTER:
                return 2
        return 1


Rows: TypeAlias = "Callable[[Table], pl.DataFrame]"
"""Returns the rows of a table that metrics need, of all streams."""


@dataclass(frozen=True, kw_only=True)
class MetricGroup:
    """Metrics that come from the same tables.

    Attributes:
        name: the name of the group.
        metrics: the declarations of the metrics.
        needs: the tables. The samples are kept until one of them changes.
        samples: yields the values for a topology.
        every_scrape: True if the values also follow from what is in no table, such as a silence.
        topology: the only topology that has them, or None if all have them.
    """

    name: str
    metrics: tuple[Metric, ...]
    needs: tuple[Table, ...]
    samples: Callable[[Scene, Rows], Iterator[Sample]]
    every_scrape: bool = False
    topology: str | None = None


GROUPS: OpenList[MetricGroup] = OpenList(
    "group of metrics", group="tidemark.metrics", package="tidemark.metrics.groups"
)
READABLE = Metric(
    name="tidemark_readable",
    rank=10,
    type=MetricType.GAUGE,
    labels=("topology",),
    source="all",
    meaning="1 if the tables of the topology could be read, else 0",
)
DROPPED = Metric(
    name="tidemark_dropped_series",
    rank=1_000_000,
    type=MetricType.GAUGE,
    labels=("topology",),
    source="all",
    meaning="series that were left out because the topology has too many",
)


def register(group: MetricGroup) -> MetricGroup:
    """Adds *group* to the list, and returns it; ValueError if another has its name."""
    return GROUPS.register(group.name, group)


@cache
def metrics() -> Mapping[str, Metric]:
    """Returns all metrics by name, in the order of their ranks."""
    known = [READABLE, *(metric for group in GROUPS.values() for metric in group.metrics), DROPPED]
    return index_by_name(sorted(known, key=lambda metric: (metric.rank, metric.name)))
