"""The newest check of SLAs."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.facts.alerts import budgets
from tidemark.facts.checks import of_newest
from tidemark.metrics.catalog import SLA, Metric, MetricGroup, MetricType, Rows, Sample, register
from tidemark.model.settings.intervals import epoch_ms
from tidemark.model.sla_event_rows import causes_of_row
from tidemark.model.tables.catalog import SLA_RESULTS
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.why.evidence.snapshot import Scene


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
    yield Sample("tidemark_check_age_seconds", (topology,), age_of_ms=epoch_ms(checks[0]["checked_at"]))
    for row in budgets(checks):
        if row["budget_left"] is not None:
            of_objective = (topology, row["objective"], row["subject"])
            yield Sample("tidemark_budget_left_ratio", of_objective, row["budget_left"])


register(
    MetricGroup(
        name="checks",
        metrics=(
            Metric(
                name="tidemark_sla_level",
                rank=70,
                type=MetricType.GAUGE,
                labels=SLA,
                source="sla_results",
                meaning=(
                    "newest check of an SLA: 0 holds, 1 warning, 2 broken; no series while it is unknown or excluded"
                ),
            ),
            Metric(
                name="tidemark_sla_observed_seconds",
                rank=80,
                type=MetricType.GAUGE,
                labels=SLA,
                source="sla_results",
                meaning="length that the newest check measured",
            ),
            Metric(
                name="tidemark_sla_cause_ratio",
                rank=90,
                type=MetricType.GAUGE,
                labels=("topology", "sla", "owner", "detail"),
                source="sla_results",
                meaning=(
                    "share of a cause in what broke an SLA, by the newest check, 0 to 1; no series while no cause "
                    "is known"
                ),
            ),
            Metric(
                name="tidemark_check_age_seconds",
                rank=100,
                type=MetricType.GAUGE,
                labels=("topology",),
                source="sla_results",
                meaning="age of the newest check of SLAs",
            ),
            Metric(
                name="tidemark_budget_left_ratio",
                rank=110,
                type=MetricType.GAUGE,
                labels=("topology", "objective", "subject"),
                source="sla_results",
                meaning="unused share of the error budget of an objective; below 0: exceeded",
            ),
        ),
        needs=(SLA_RESULTS,),
        samples=_of_checks,
    )
)
