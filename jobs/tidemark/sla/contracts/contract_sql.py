"""Builds DuckDB's SQL that counts rows which break a table's contract.

Each SELECT returns one row: counts, and then an example of what it counted: the key of a row (JSON) and its culprit.
Rows come after FROM.
"""

from __future__ import annotations

from tidemark.model.checks import CONDITIONS, SUMS, ConditionKind, Conditions
from tidemark.model.tables.catalog import HOP, Table
from tidemark.selection import within

KEYS = "duplicate_keys"
COUNTS = (KEYS, *(rule.value for rule in ConditionKind))
IDENTITY = (
    "batch_id",
    "operator",
    "source",
    "topic",
    "partition",
    "offset",
    "source_partition",
    "source_offset",
    "key",
)
"""Columns that identify a row of a table without a key, as far as the table has them."""
EXAMPLE = "min(to_json(key)::varchar), arg_min(culprit, to_json(key)::varchar)"


def broken_rows_select(table: Table, rows: str) -> str:
    """Returns a SELECT that counts *rows*, and those that break each kind of condition."""
    # A condition that is null breaks the rule.
    broken = ", ".join(f"NOT coalesce({_holds(table, rule)}, false) AS {rule}" for rule in ConditionKind)
    counts = ", ".join(f"count(*) FILTER (WHERE {rule})" for rule in ConditionKind)
    is_broken = " OR ".join(ConditionKind)
    example = ", ".join(f"{part} FILTER (WHERE {is_broken})" for part in EXAMPLE.split(", ", 1))
    return f"SELECT count(*), {counts}, {example} FROM (SELECT {_identified(table)}, {broken} FROM {rows})"


def key_hash(table: Table) -> str:
    """Returns the hash of the key of a row; equal keys have equal hashes, and null is a key like any other."""
    return f"hash({', '.join(map(_named, table.key))})"


def has_repeated_keys_select(table: Table, rows: str) -> str:
    """Returns a SELECT that is true if two of *rows* may have the same key.

    It compares hashes, so it needs some 30 bytes of memory a row, whatever the key is.
    """
    return f"SELECT count(*) > 0 FROM ({_repeated(table, rows)})"


def repeated_keys_select(table: Table, rows: str) -> str:
    """Returns a SELECT that counts the *rows* beyond the first of each key."""
    suspects = rows_where(rows, f"{key_hash(table)} IN ({_repeated(table, rows)})")
    by_key = f"SELECT key, count(*) AS n, min(culprit) AS culprit FROM (SELECT {_identified(table)} FROM {suspects})"
    return f"SELECT coalesce(sum(n - 1), 0)::bigint, {EXAMPLE} FROM ({by_key} GROUP BY key HAVING n > 1)"


def wrong_sums_select(table: Table, rows: str, parts: str) -> str:
    """Returns a SELECT that counts the keys whose amount in *rows* is not the sum of their amounts in *parts*.

    A key that *rows* have twice is not counted, because it is reported as a duplicate.
    """
    whole = SUMS[table.name]
    # Parts count as no row (n is 0) and are subtracted: the amount of a correct key is 0.
    amounts = (
        f"SELECT {_identified(table)}, 1 AS n, coalesce({whole.whole}, 0) AS amount FROM {rows} UNION ALL "
        f"SELECT {_identified(table)}, 0, -coalesce({whole.parts}, 0) FROM {parts}"
    )
    by_key = f"SELECT key, sum(n) AS n, sum(amount) AS amount, min(culprit) AS culprit FROM ({amounts}) GROUP BY key"
    return f"SELECT count(*), {EXAMPLE} FROM ({by_key}) WHERE n < 2 AND amount <> 0"


def counted_of(table: Table) -> set[str]:
    """Returns the names in COUNTS that apply to *table*."""
    rules = {rule.value for rule, named in _conditions(table).items() if named}
    about_keys = {KEYS} if table.key else set()
    about_sums = {ConditionKind.RELATIONS.value} if table.name in SUMS else set()
    return rules | about_keys | about_sums


def rows_where(rows: str, condition: str) -> str:
    """Returns those of *rows* for which *condition* is true."""
    return f"(SELECT * FROM {rows} WHERE {condition})"


def _repeated(table: Table, rows: str) -> str:
    return f"SELECT hashed FROM (SELECT {key_hash(table)} AS hashed FROM {rows}) GROUP BY hashed HAVING count(*) > 1"


def _identified(table: Table) -> str:
    """Returns the columns `key` and `culprit` of a row."""
    identity = table.key or within(table.names, IDENTITY)
    key = ", ".join(f"'{name}': {_named(name)}" for name in identity)
    culprit = next((name for name in ("operator", "source") if name in table.names), "NULL::varchar")
    return f"{{{key}}} AS key, {culprit} AS culprit"


def _named(name: str) -> str:
    return f'"{name}"'


def _holds(table: Table, rule: ConditionKind) -> str:
    return " AND ".join(f"({condition})" for condition in _conditions(table).get(rule, {}).values()) or "true"


def _conditions(table: Table) -> Conditions:
    return CONDITIONS.get(HOP.name if table.name.startswith("hop_") else table.name, {})
