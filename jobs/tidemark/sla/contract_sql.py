"""SQL for DuckDB that counts the rows which break the contract of a table (ring 1)."""

from __future__ import annotations

from tidemark.spec import tables
from tidemark.spec.checks import CONDITIONS, SUMS, Conditions, Rule
from tidemark.spec.tables import Table

KEYS = "duplicate_keys"
COUNTS = (KEYS, *(rule.value for rule in Rule))
PLACE = ("batch_id", "operator", "source", "topic", "partition", "offset", "source_partition", "source_offset", "key")
"""What a row without a key is told by."""
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
"""A row whose key comes twice is told for that alone: what it sums up to is not what its parts do."""


def counting(table: Table, rows: str, parts: str | None) -> str:
    """SELECT how many of *rows* of *table* there are, COUNTS of those that break it, and key and culprit of one.

    *rows* and *parts* come after FROM; *parts* are those of the table of which SUMS has the whole; None: not judged.
    """
    told_by = table.key or [name for name in table.names if name in PLACE]
    key = "{" + ", ".join(f"'{name}': \"{name}\"" for name in told_by) + "} AS key"
    culprit = next((name for name in ("operator", "source") if name in table.names), "NULL")
    broken = ", ".join(f"(NOT coalesce({_holds(table, rule)}, false))::int AS {rule}" for rule in Rule)
    whole = SUMS[table.name] if parts else None
    amount = f"coalesce({whole.whole}, 0)" if whole else "0"
    judged = f"SELECT {key}, 1 AS n, {amount} AS amount, {culprit} AS culprit, {broken} FROM {rows}"
    if whole:
        judged += f" UNION ALL SELECT {key}, 0, -coalesce({whole.parts}, 0), {culprit}, 0, 0, 0 FROM {parts}"
    return COUNTED.format(keys="greatest(n - 1, 0)" if table.key else "0", rows=judged)


def counted_of(table: Table) -> set[str]:
    """Which of COUNTS say something of *table*."""
    rules = {rule.value for rule, named in _conditions(table).items() if named}
    return rules | ({KEYS} if table.key else set()) | ({Rule.RELATIONS.value} if table.name in SUMS else set())


def _holds(table: Table, rule: Rule) -> str:
    return " AND ".join(f"({condition})" for condition in _conditions(table).get(rule, {}).values()) or "true"


def _conditions(table: Table) -> Conditions:
    return CONDITIONS.get(tables.HOP.name if table.name.startswith("hop_") else table.name, {})
