"""What holds for every row of a report, as CHECK constraints of its table: conditions in SQL, by table and name.

A column that is null is right. A condition that changes gets another name; who opens the table puts it in the place of
the old one. The tables of streams have none, by decision 16.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tidemark.semantics.critical_path import State
from tidemark.semantics.incidents import Change
from tidemark.semantics.sla import Verdict
from tidemark.spec.intervals import Grain
from tidemark.spec.operators import Kind
from tidemark.spec.sla_spec import Measure, Severity
from tidemark.spec.tables import (
    CRITICAL_PATH_LEAVES,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    DQ_RESULTS,
    INCIDENTS,
    LATENCY_BUCKET_ROLLUP,
    LATENCY_ROLLUP,
    SLA_RESULTS,
)


def _known(column: str, words: Iterable[str], form: str = "") -> dict[str, str]:
    """*form* tells a vocabulary that has grown from its older ones."""
    listed = ", ".join(f"'{word}'" for word in words)
    return {f"tidemark_known_{column}{form}": f"{column} is null or {column} in ({listed})"}


def _not_negative(*columns: str) -> dict[str, str]:
    return {f"tidemark_{column}_not_negative": f"{column} is null or {column} >= 0" for column in columns}


def _before(start: str, end: str) -> dict[str, str]:
    return {f"tidemark_{start}_first": f"{start} is null or {end} is null or {start} < {end}"}


_SLA = _known("measure", Measure, "_2") | _known("verdict", Verdict) | _known("severity", Severity)
_SHARE = {"tidemark_share_up_to_1": "share is null or share between 0 and 1"}
_ROLLUP = (
    _known("scope", ("operator", "task", "topology", "path"))
    | _known("kind", Kind)
    | _known("grain", Grain)
    | _before("interval_start", "interval_end")
)
_WINDOW = _before("window_start", "window_end") | _not_negative("latency_ms")
_PATH = _WINDOW | _known("state", State) | _not_negative("queued_ms")

CHECKS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        LATENCY_ROLLUP.name: _ROLLUP
        | _not_negative("n", "negative_n", "over_sla_n")
        | {"tidemark_min_up_to_max": "min_ms is null or max_ms is null or min_ms <= max_ms"},
        LATENCY_BUCKET_ROLLUP.name: _ROLLUP | _not_negative("n"),
        CRITICAL_PATHS.name: _PATH,
        CRITICAL_PATH_STEPS.name: _PATH | _not_negative("step") | _SHARE,
        CRITICAL_PATH_LEAVES.name: _WINDOW | _not_negative("behind_ms"),
        SLA_RESULTS.name: _SLA | _not_negative("records"),
        INCIDENTS.name: _SLA | _known("change", Change),
        DQ_RESULTS.name: _not_negative("unexpected_count"),
    }
)
"""By table: name and condition of each check; a table that is not named has none."""
