"""Verdicts on the counts of contracts, as rows of `expectation_results`.

The suites `schema` and `contract` state the largest value that each count may have. great-expectations judges by them
once an hour, and after a verdict has changed. The checker, which does not import it, compares the same counts with the
same limits, so that a broken contract is known before a suite has run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from tidemark.model.measures.contract import CONTRACTS_OVER_MS
from tidemark.model.project.files import CHECKOUT
from tidemark.sla.contracts.contract_sql import COUNTS
from tidemark.sla.contracts.counts import SCHEMA_COUNTS, ContractCounts
from tidemark.sla.contracts.periods import CONTRACT, SCHEMA, standing_results

SUITES = CHECKOUT / "expectations"
Row = dict[str, Any]


def verdicts_by_limits(by_contract: Sequence[ContractCounts], *, at_ms: int) -> list[Row]:
    """Returns a row for each table and expectation about its counts, which were made at *at_ms* (epoch ms)."""
    return [
        verdict_on(table, found, at_ms=at_ms)
        for suite in (SCHEMA, CONTRACT)
        for table in by_contract
        for found in _compared(suite, table.schema if suite == SCHEMA else table.counts)
    ]


def _compared(suite: str, counts: Mapping[str, int]) -> Iterator[Row]:
    for expectation in _expectations(suite):
        column = expectation["kwargs"]["column"]
        if column in counts:
            is_kept = counts[column] <= expectation["kwargs"]["max_value"]
            yield {
                "suite": suite,
                "expectation": expectation["type"],
                "column": column,
                "severity": expectation["severity"],
                "success": is_kept,
                "observed": str(counts[column]),
                "unexpected_count": int(not is_kept),
            }


@cache
def _expectations(suite: str) -> list[dict[str, Any]]:
    expectations: list[dict[str, Any]] = read_suite(suite)["expectations"]
    return expectations


def read_suite(name: str) -> dict[str, Any]:
    """Returns the suite *name* as great-expectations stores suites."""
    content: dict[str, Any] = json.loads((SUITES / f"{name}.json").read_text(encoding="utf-8"))
    return content


def verdict_on(table: ContractCounts, found: Row, *, at_ms: int) -> Row:
    """Returns the row about an expectation with the *table* that it was judged for, and its example if it is broken."""
    broken = {} if found["success"] else {"culprit": table.culprit, "example": table.example}
    about = {"table": table.table, "sub_topology": table.sub_topology, "table_version": table.version}
    return {**found, **about, "judged_at": at_ms, **broken, "batch_id": table.batch_id, "rows": table.rows}


def standing_contracts(
    found: Sequence[Row], by_contract: Sequence[ContractCounts], stored: Sequence[Mapping[str, Any]], *, at_ms: int
) -> list[Row]:
    """Returns the verdicts on contracts that hold at *at_ms* (epoch ms), first about columns, then about rows.

    What was found in the last CONTRACTS_OVER_MS still stands; *stored* are the rows of `expectation_results`.
    """
    sound = {(each.sub_topology, each.table) for each in by_contract if each.is_sound}
    standing = standing_results(found, stored, sound, since_ms=at_ms - CONTRACTS_OVER_MS)
    # Results of earlier checks are sorted as if they were found now.
    columns = [*SCHEMA_COUNTS, *COUNTS]
    tables = [(each.sub_topology, each.table) for each in by_contract]
    return sorted(
        standing,
        key=lambda row: (columns.index(row["column"]), tables.index((row["sub_topology"], row["table"]))),
    )
