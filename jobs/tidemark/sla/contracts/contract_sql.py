"""Builds DuckDB's SQL that counts rows which break a table's contract."""

from __future__ import annotations

from tidemark.collecting import within
from tidemark.model.checks import CONDITIONS, SUMS, ConditionKind, Conditions
from tidemark.model.tables.catalog import HOP, Table

KEYS = "duplicate_keys"
COUNTS = (KEYS, *(rule.value for rule in ConditionKind))
PLACE = ("batch_id", "operator", "source", "topic", "partition", "offset", "source_partition", "source_offset", "key")
"""Columns that identify a row of a table without key.

A table may lack some of them.
"""
COUNTED = """
    SELECT coalesce(sum(n), 0)::bigint AS rows,
           sum({keys})::bigint, sum(unknown_words)::bigint, sum(negative_counts)::bigint, sum(not_adding_up)::bigint,
           min(to_json(key)::varchar) FILTER (WHERE is_broken) AS example,
           arg_min(culprit, to_json(key)::varchar) FILTER (WHERE is_broken) AS culprit
    FROM (SELECT *, {keys} + unknown_words + negative_counts + not_adding_up > 0 AS is_broken
          FROM (SELECT key, sum(n) AS n, min(culprit) AS culprit, sum(unknown_words) AS unknown_words,
                       sum(negative_counts) AS negative_counts,
                       sum(not_adding_up) + (sum(n) < 2 AND sum(amount) <> 0)::int AS not_adding_up
                FROM ({rows}) GROUP BY key))
"""
"""Counts rows by key.

A row whose key exists twice counts as a duplicate only: its sum is not compared with that of its parts.
"""


def counting_select(table: Table, rows: str, parts: str | None) -> str:
    """Returns a SELECT of one row about the contract of *table*.

    Its columns: the number of *rows*, the COUNTS of those that break the contract, key and culprit of one of these.
    *rows* and *parts* come after FROM. *parts* are the rows that SUMS adds up to *rows*; None: sums are not judged.
    """
    identity = table.key or within(table.names, PLACE)
    key = "{" + ", ".join(f"'{name}': \"{name}\"" for name in identity) + "} AS key"
    culprit = next((name for name in ("operator", "source") if name in table.names), "NULL")
    # A condition that is null breaks the rule.
    broken = ", ".join(f"(NOT coalesce({_holds(table, rule)}, false))::int AS {rule}" for rule in ConditionKind)
    # Only tables in SUMS have parts.
    whole = SUMS[table.name] if parts else None
    amount = f"coalesce({whole.whole}, 0)" if whole else "0"
    judged = f"SELECT {key}, 1 AS n, {amount} AS amount, {culprit} AS culprit, {broken} FROM {rows}"
    if whole:
        # Parts count as no row (n is 0) and are subtracted: the amount of a correct key is 0.
        judged += f" UNION ALL SELECT {key}, 0, -coalesce({whole.parts}, 0), {culprit}, 0, 0, 0 FROM {parts}"
    return COUNTED.format(keys="greatest(n - 1, 0)" if table.key else "0", rows=judged)


def counted_of(table: Table) -> set[str]:
    """Returns the names in COUNTS that apply to *table*."""
    rules = {rule.value for rule, named in _conditions(table).items() if named}
    of_keys = {KEYS} if table.key else set()
    of_sums = {ConditionKind.RELATIONS.value} if table.name in SUMS else set()
    return rules | of_keys | of_sums


def _holds(table: Table, rule: ConditionKind) -> str:
    return " AND ".join(f"({condition})" for condition in _conditions(table).get(rule, {}).values()) or "true"


def _conditions(table: Table) -> Conditions:
    return CONDITIONS.get(HOP.name if table.name.startswith("hop_") else table.name, {})
