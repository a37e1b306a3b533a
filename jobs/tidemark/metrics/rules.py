"""Makes Prometheus' alerting rules from the SLAs of a topology.

Latency and watermark lag are compared by Prometheus itself, so these alerts need no check by Airflow. All other SLAs
alert by the verdict of their newest check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemark.metrics.catalog import PERCENTILES
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.settings.lengths import for_people
from tidemark.model.slas.sla_keys import ResultPlace
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.semantics.sla import BurnRate, ChangeMaximums, RecordMinimums, Severity, ShareMaximums, Sla

OVERDUE_CHECKS = 2
"""A check counts as overdue after so many intervals of `check_every`."""


def rules_file(topologies: Sequence[tuple[Topology, Iterable[SlaSpec]]]) -> str:
    """Returns the rules of *topologies* with their SLAs, as YAML.

    Strings are written as in JSON, which is part of YAML.
    """
    lines = ["# Written by `tidemark metrics rules`.", "groups:" if topologies else "groups: []"]
    for topology, specs in topologies:
        lines += [f"- name: {_text(f'tidemark_{topology.name}')}", "  rules:"]
        for rule in [*_of_topology(topology), *(each for spec in specs for each in _of_sla(topology, spec))]:
            lines.append(f"  - alert: {_text(rule.pop('alert'))}")
            for key, value in rule.items():
                lines.append(f"    {key}: {_text(value)}")
    return "\n".join([*lines, ""])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rule(
    alert: str, expression: str, wait: str, labels: Mapping[str, str], summary: str, **more: str
) -> dict[str, Any]:
    # In a runbook, a text in braces would be a template of Prometheus.
    plain = {name: text.replace("{{", '{{ "{{" }}') for name, text in more.items()}
    annotations = {"summary": summary, **plain}
    return {"alert": alert, "expr": expression, "for": wait, "labels": dict(labels), "annotations": annotations}


def _of_topology(topology: Topology) -> Iterator[dict[str, Any]]:
    """Yields the rules that every topology has."""
    matcher = f"topology={_text(topology.name)}"
    labels = {"topology": topology.name, "severity": Severity.CRITICAL.value}
    stopped = f'tidemark_stream_state{{{matcher},tidemark_stream_state=~"failed|dead|stuck"}} == 1'
    yield _rule(
        "TidemarkStreamStopped", stopped, "1m", labels,
        "the stream {{ $labels.sub_topology }} is {{ $labels.tidemark_stream_state }}",
    )  # fmt: skip
    unreadable = f"tidemark_readable{{{matcher}}} == 0 or absent(tidemark_readable{{{matcher}}})"
    yield _rule("TidemarkUnreadable", unreadable, "5m", labels, "there are no metrics of the topology")
    overdue_s = OVERDUE_CHECKS * topology.check_every_ms / 1000
    overdue = f"tidemark_check_age_seconds{{{matcher}}} > {overdue_s:g}"
    yield _rule("TidemarkCheckOverdue", overdue, "1m", labels, "SLAs are not checked any more")
    dropped = f"tidemark_dropped_series{{{matcher}}} > 0"
    warning = labels | {"severity": Severity.WARNING.value}
    yield _rule("TidemarkSeriesDropped", dropped, "5m", warning, "the topology has too many series; some are left out")


def _of_sla(topology: Topology, spec: SlaSpec) -> Iterator[dict[str, Any]]:
    """Yields a warning and a rule of the severity of *spec*."""
    wait = f"{max(0, spec.damping.open_after_ms) // 1000}s"
    more = {} if spec.runbook is None else {"runbook": spec.runbook}
    levels = [*_levels(topology, spec)]
    for level, severity, limit_ms in levels:
        labels = {"topology": topology.name, "sla": spec.name, "severity": severity.value, "owner": spec.owner}
        names = {"topology": topology.name, "sla": spec.name}
        expression = f"tidemark_sla_level{{{_matchers(names)}}} == {level}"
        finding = "the newest check has a warning" if level == 1 else "the newest check found it broken"
        if limit_ms is not None:
            expression = f"{_value(topology, spec)} >= {limit_ms / 1000:.15g}"
            if level == 1 and levels[-1][0] == 2:
                # From the limit of the error on, its alert replaces that of the warning.
                expression += f" < {(levels[-1][2] or 0) / 1000:.15g}"
            finding = f"it is {for_people(round(limit_ms))} or more"
        yield _rule("TidemarkSla", expression, wait, labels, f"{spec.measure} of {spec.subject}: {finding}", **more)


def _levels(topology: Topology, spec: SlaSpec) -> Iterator[tuple[int, Severity, float | None]]:
    """Yields levels of `tidemark_sla_level` with their severity, and the limit (ms) with which Prometheus compares.

    Without a limit Prometheus compares the level itself.
    """
    limits = spec.limits
    # Prometheus does not know what excuses a subject, when rows are merged, how many records a percentile has, or how
    # late the rows of a watched table were.
    has_times = spec.calendar or spec.maintenance_windows or spec.exempt
    is_of_view = spec.place is ResultPlace.VIEW and not topology.is_watch
    is_direct = is_of_view and (spec.measure is WATERMARK_LAG or _percentile(spec) is not None)
    if not isinstance(limits, Sla) or not is_direct or spec.may_be_excused or has_times or limits.min_records > 1:
        warns, errs = _verdicts(spec)
        if warns:
            yield 1, Severity.WARNING, None
        if errs:
            yield 2, spec.severity, None
        return
    if limits.warn_after_ms is not None:
        yield 1, Severity.WARNING, limits.warn_after_ms
    if limits.error_after_ms is not None:
        yield 2, spec.severity, limits.error_after_ms


def _percentile(spec: SlaSpec) -> str | None:
    """Returns the label of the latencies that *spec* limits, or None if no metric has them."""
    names = (name for name, quantile in PERCENTILES.items() if quantile == spec.measure.quantile)
    return next(names, None) if spec.measure.is_latency else None


def _verdicts(spec: SlaSpec) -> tuple[bool, bool]:
    """Returns whether a check can warn of *spec*, and whether it can find *spec* broken."""
    match spec.limits:
        case Sla(warn_after_ms=warn, error_after_ms=error):
            # A table that was never loaded, and one that is ahead of the clock, break an SLA that has only a warning.
            is_quantile = spec.measure.quantile is not None
            return warn is not None, error is not None or not is_quantile
        case RecordMinimums(warn_below=warn, error_below=error):
            return warn is not None, error is not None
        case ChangeMaximums(warn_above=warn, error_above=error) | ShareMaximums(warn_above=warn, error_above=error):
            return warn is not None, error is not None
        case BurnRate(warn_at=warn, error_at=error):
            return warn < error, True
    return False, True


def _value(topology: Topology, spec: SlaSpec) -> str:
    """Returns the expression of the length, s, that *spec* limits."""
    if spec.measure is WATERMARK_LAG:
        is_sub = spec.subject in {sub.name for sub in topology.sub_topologies}
        labels = {"topology": topology.name, "sub_topology" if is_sub else "source": spec.subject}
        return f"max(tidemark_watermark_lag_seconds{{{_matchers(labels)}}})"
    labels = {"topology": topology.name, "operator": spec.subject, "percentile": str(_percentile(spec))}
    return f"tidemark_recent_latency_seconds{{{_matchers(labels)}}}"


def _matchers(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={_text(value)}" for name, value in labels.items())
