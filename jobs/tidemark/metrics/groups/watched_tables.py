"""Watched Delta tables, by their newest commits that changed data."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.metrics.catalog import Metric, MetricGroup, MetricType, ProposedName, Rows, Sample, register
from tidemark.model.project.layout import WATCH
from tidemark.model.settings.intervals import epoch_ms
from tidemark.model.tables.catalog import TABLE_AGES
from tidemark.why.evidence.snapshot import Scene


def _of_tables(scene: Scene, rows: Rows) -> Iterator[Sample]:
    newest = rows(TABLE_AGES).sort("read_at", "version").unique("table", keep="last").sort("table")
    for row in newest.to_dicts():
        of_table = (scene.topology.name, row["table"])
        if row["newest_low_at"] is not None:
            yield Sample("tidemark_table_age_seconds", of_table, age_of_ms=epoch_ms(row["newest_low_at"]))
        yield Sample("tidemark_table_commit_timestamp_seconds", of_table, epoch_ms(row["committed_at"]) / 1_000)
        if row["peak_high_ms"] is not None:
            yield Sample("tidemark_table_peak_age_seconds", of_table, row["peak_high_ms"] / 1_000)
        if row["latency_low_ms"] is not None:
            yield Sample("tidemark_table_lag_seconds", of_table, row["latency_low_ms"] / 1_000)


def _metric(name: str, rank: int, meaning: str, *, proposed: str) -> Metric:
    """Makes a metric of each table, with its name in https://github.com/open-telemetry/semantic-conventions/issues/3909."""
    method = "snapshot" if proposed == LAST_UPDATE else "max_timestamp"
    return Metric(
        name=name,
        rank=rank,
        type=MetricType.GAUGE,
        labels=("topology", "table"),
        source=TABLE_AGES.name,
        meaning=meaning,
        proposed=ProposedName(
            name=proposed,
            attributes={"table": "data.source.name"},
            same={"data.source.system": "delta", "data.staleness.method": method},
        ),
    )


LAST_UPDATE = "data.staleness.last_update.timestamp"

register(
    MetricGroup(
        name="watched_tables",
        metrics=(
            _metric(
                "tidemark_table_age_seconds",
                132,
                "age of the newest event time of a watched table, at most; no series if it is not known",
                proposed="data.staleness.age",
            ),
            _metric(
                "tidemark_table_commit_timestamp_seconds",
                134,
                "instant of the last commit of a watched table that changed data, since 1970",
                proposed=LAST_UPDATE,
            ),
            _metric(
                "tidemark_table_peak_age_seconds",
                136,
                "age of a watched table just before that commit, at most",
                proposed="data.staleness.age.peak",
            ),
            _metric(
                "tidemark_table_lag_seconds",
                138,
                "time from the newest event time that this commit appended to the commit, at least; no series if it "
                "appended none",
                proposed="data.staleness.lag",
            ),
        ),
        needs=(TABLE_AGES,),
        samples=_of_tables,
        topology=WATCH,
    )
)
