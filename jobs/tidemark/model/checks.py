"""Conditions in SQL that hold for every row of a table.

Each condition belongs to a table and a rule, and has a name. Tables of reports have the conditions as CHECK constraints
(CHECKS). A condition that changes gets another name, and a writer that opens the table replaces the old constraint. The
tables of streams have no constraints (decision 16): their rows are judged afterwards, as part of their contract. A null
is valid, except in the counts of `operator_batches`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from types import MappingProxyType

from tidemark.model.kinds.operator import Level
from tidemark.model.settings.intervals import Grain, Scope
from tidemark.model.tables.catalog import (
    ALERTS,
    BATCHES,
    BECAME,
    CAME_IN,
    CHANGES,
    COMPLETENESS,
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    DEAD_LETTERS,
    DECISIONS,
    EXPECTATION_RESULTS,
    HEARTBEATS,
    HOP,
    INCIDENTS,
    LATENCY_MINUTES,
    LATENCY_ROLLUP,
    OPERATOR_BATCHES,
    OPERATOR_WINDOWS,
    PARTITION_BATCHES,
    SCHEMA_CHANGES,
    SLA_RESULTS,
    STATE_CHANGES,
    SUPPRESSED,
    TABLE_AGES,
    WINDOW_PARTS,
    Table,
)
from tidemark.semantics.critical_path import LatencyState
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.idleness import Activity
from tidemark.semantics.incidents import Change, Decision, DecisionSubject
from tidemark.semantics.repairs import RepairOutcome
from tidemark.semantics.schema_watch import FieldChange
from tidemark.semantics.sla import Severity, Verdict
from tidemark.semantics.table_commits import CommitClock, DataChange


class ConditionKind(StrEnum):
    """The kind of condition that a row may break."""

    KNOWN_WORDS = "unknown_words"
    """A vocabulary is closed."""
    COUNTS = "negative_counts"
    """A count or length is not negative."""
    RELATIONS = "not_adding_up"
    """Columns fit one another: sums, and orders."""


Conditions = Mapping[ConditionKind, Mapping[str, str]]
"""By kind, the conditions on every row: SQL by name."""


def words(table: Table, column: str) -> list[str]:
    """Returns the vocabulary of a column of *table*, which its comment lists."""
    return next(each.comment for each in table.columns if each.name == column).split(" | ")


def is_one_of(column: str, words: Iterable[str]) -> Conditions:
    """Returns the condition that *column* has one of *words*."""
    listed = ", ".join(f"'{word}'" for word in words)
    # Constraints are compared by their names (storage/delta/tables.py), so the name changes with the words.
    digest = hashlib.sha256(listed.encode()).hexdigest()[:8]
    return {
        ConditionKind.KNOWN_WORDS: {f"tidemark_known_{column}_{digest}": f"{column} is null or {column} in ({listed})"}
    }


def _not_negative(*columns: str) -> Conditions:
    return {
        ConditionKind.COUNTS: {
            f"tidemark_{column}_not_negative": f"{column} is null or {column} >= 0" for column in columns
        }
    }


def _fields_not_negative(column: str, *fields: str) -> Conditions:
    """Returns the conditions that none of *fields* in the list *column* is negative."""
    return {
        ConditionKind.COUNTS: {
            f"tidemark_{column}_{field}_not_negative": f"{column} is null or "
            f"coalesce(list_min([x.{field} for x in {column}]), 0) >= 0"
            for field in fields
        }
    }


def _fit(**conditions: str) -> Conditions:
    return {ConditionKind.RELATIONS: {f"tidemark_{name}": condition for name, condition in conditions.items()}}


def _before(start: str, end: str) -> Conditions:
    return _fit(**{f"{start}_first": f"{start} is null or {end} is null or {start} < {end}"})


def _up_to(low: str, high: str) -> Conditions:
    return _fit(**{f"{low}_up_to_{high}": f"{low} is null or {high} is null or {low} <= {high}"})


def _all(*parts: Conditions) -> Conditions:
    def both(one: Conditions, other: Conditions) -> Conditions:
        return {rule: {**one.get(rule, {}), **other.get(rule, {})} for rule in ConditionKind}

    return reduce(both, parts, {})


def _by_name(conditions: Conditions) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for of_kind in conditions.values():
        by_name |= of_kind
    return by_name


# Measures and kinds of operators are words of open lists.
_SLA = _all(is_one_of("verdict", Verdict), is_one_of("severity", Severity))
_SHARE = _fit(share_up_to_1="share is null or share between 0 and 1")
_STATS = _all(
    _not_negative("n", "negative_n"), _fit(min_up_to_max="min_ms is null or max_ms is null or min_ms <= max_ms")
)
_ROLLUP = _all(
    is_one_of("scope", Scope),
    is_one_of("grain", Grain),
    _before("interval_start", "interval_end"),
)
_ORDERED = _before("window_start", "window_end")
_WINDOW = _all(_ORDERED, _not_negative("latency_ms"))
_PATH = _all(_WINDOW, is_one_of("state", LatencyState), _not_negative("queued_ms"))
_HASHED = _fit(value_hashed="(value is null) = (value_hash is null)")

_OF_REPORTS: Mapping[str, Conditions] = {
    LATENCY_ROLLUP.name: _all(_ROLLUP, _STATS, _not_negative("over_sla_n")),
    CRITICAL_PATHS.name: _PATH,
    CRITICAL_PATH_STEPS.name: _all(_PATH, _not_negative("step"), _SHARE),
    WINDOW_PARTS.name: _not_negative("error_ms"),
    SLA_RESULTS.name: _all(_SLA, _not_negative("records", "window_records", "window_slow")),
    INCIDENTS.name: _all(_SLA, is_one_of("change", Change)),
    ALERTS.name: _all(_SLA, is_one_of("change", Change)),
    DECISIONS.name: _all(
        is_one_of("subject_kind", DecisionSubject),
        is_one_of("outcome", RepairOutcome),
        _fit(repair_has_outcome=f"outcome is not null or decision is null or decision in {(*map(str, Decision),)}"),
    ),
    EXPECTATION_RESULTS.name: _all(
        _not_negative("unexpected_count", "rows", "checks"), _up_to("first_checked_at", "last_checked_at")
    ),
    TABLE_AGES.name: _all(
        is_one_of("clock", CommitClock),
        is_one_of("change", (DataChange.APPENDED, DataChange.REPLACED)),
        _not_negative("version", "rows", "bytes"),
        _up_to("newest_low_at", "newest_high_at"),
        _up_to("latency_low_ms", "latency_high_ms"),
        _up_to("peak_low_ms", "peak_high_ms"),
    ),
}
_OF_STREAMS: Mapping[str, Conditions] = {
    BATCHES.name: _all(is_one_of("level", Level), _not_negative("batch_id", "records_in")),
    OPERATOR_BATCHES.name: _all(
        is_one_of("level", Level),
        _STATS,
        _not_negative("queued_ms"),
        {ConditionKind.COUNTS: {f"tidemark_{column}_counted": f"{column} >= 0" for column in (*CAME_IN, *BECAME)}},
        _fit(adds_up=f"{' + '.join(CAME_IN)} = {' + '.join(BECAME)}"),
        _fit(tasks_add_up="n is null or n = list_sum([x.n for x in tasks])"),
        _fields_not_negative("tasks", "n", "negative_n", "idempotent_update_skip_total", "idempotent_update_skip_rate"),
        _fields_not_negative("disorder", "n"),
    ),
    LATENCY_MINUTES.name: _STATS,
    OPERATOR_WINDOWS.name: _all(_ORDERED, _not_negative("queued_ms", "records", "skew_error_ms")),
    PARTITION_BATCHES.name: _all(
        is_one_of("activity", Activity),
        _not_negative("from_offset", "until_offset", "latest_offset", "lost_from_offset", "lost_until_offset"),
        _fit(loss_has_an_end="(lost_from_offset is null) = (lost_until_offset is null)"),
    ),
    CHANGES.name: _all(_ORDERED, _HASHED, _not_negative("seq")),
    SUPPRESSED.name: _all(
        _not_negative("n"),
        _up_to("first_offset", "last_offset"),
    ),
    STATE_CHANGES.name: is_one_of("kind", words(STATE_CHANGES, "kind")),
    DEAD_LETTERS.name: _all(
        is_one_of("kind", DeadLetterKind),
        is_one_of("reason", words(DEAD_LETTERS, "reason")),
        _not_negative("lateness_ms"),
        _fit(
            behind_watermark="lateness_ms is null or watermark is null "
            "or lateness_ms = epoch_ms(watermark) - epoch_ms(timestamp)",
            quarantined_has_reason=f"kind is null or (kind = '{DeadLetterKind.QUARANTINED}') = (reason is not null)",
        ),
    ),
    SCHEMA_CHANGES.name: _all(is_one_of("change", FieldChange), _up_to("first_seen_at", "last_seen_at")),
    COMPLETENESS.name: _all(
        _before("interval_start", "interval_end"),
        _not_negative("records", "emitted", "waited_ms"),
        is_one_of("cause", words(COMPLETENESS, "cause")),
        _fit(reopened_has_cause="(reopened_at is null) = (cause is null)"),
    ),
    HEARTBEATS.name: _all(
        is_one_of("state", words(HEARTBEATS, "state")),
        _fields_not_negative("clock_offsets", "error_ms", "samples"),
    ),
    HOP.name: _not_negative("seq", "partition"),
}
CONDITIONS: Mapping[str, Conditions] = MappingProxyType({**_OF_REPORTS, **_OF_STREAMS})
"""By table; other tables have none."""
CHECKS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {table: _by_name(conditions) for table, conditions in _OF_REPORTS.items()}
)
"""By report, name and condition of each constraint in Delta."""


@dataclass(frozen=True)
class Sum:
    """A column that must be a sum over the rows of another table.

    The column *whole* of a row is the sum of *parts*, SQL over the rows of the table *of* that have the row's key.
    """

    whole: str
    of: str
    parts: str


SUMS: Mapping[str, Sum] = MappingProxyType(
    {
        OPERATOR_BATCHES.name: Sum("suppressed", SUPPRESSED.name, "n"),
        CRITICAL_PATHS.name: Sum("latency_ms", CRITICAL_PATH_STEPS.name, "if(step is null, 0, latency_ms)"),
    }
)
"""By table, the sums that hold.

Every suppressed update has its proof, and a path is as long as its steps.
"""
