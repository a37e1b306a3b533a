"""Reads the newest check of a topology's SLAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from tidemark.facts.answers import Row
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import epoch_ms
from tidemark.model.tables.catalog import SLA_RESULTS
from tidemark.query.stored_tables import StoredTables

MEASURED = (
    *("sla", "subject", "measure", "verdict", "message", "culprit", "blocked_by"),
    *("observed_ms", "warn_after_ms", "error_after_ms", "excluded_because"),
    *("objective", "target", "threshold_ms", "window_ms", "budget_left", "stale_groups"),
)
"""Columns of `sla_results` that tell what was measured."""
CAUSES = tuple(name for name in SLA_RESULTS.names if name.startswith("cause") or name == "other_causes")
"""Columns of `sla_results` that tell why an SLA is broken."""


@dataclass(frozen=True)
class Check:
    """A check by the run `run_id` at `checked_at`, with a row for each SLA, sorted by the name of the SLA."""

    checked_at: datetime
    run_id: str
    rows: Sequence[Row]

    @property
    def at_ms(self) -> int:
        """The instant of the check, epoch ms."""
        return epoch_ms(self.checked_at)


def newest_check(
    stored: StoredTables, layout: Layout, topology: str, *where: pl.Expr, columns: Sequence[str] = MEASURED
) -> Check | None:
    """Returns the newest check of *topology* with results that fulfil all of *where*; None without such a check.

    Args:
        stored: tables that were opened already.
        layout: where the tables of the topology are.
        topology: the name of the topology.
        where: conditions on the columns of `sla_results`.
        columns: the columns that the rows of the check get.
    """
    results = stored.scan(layout.report_table(topology, SLA_RESULTS.name))
    if results is None:
        return None
    # Files without the newest check are not read.
    checked_at = results.filter(*where).select(pl.col("checked_at").max()).collect().item()
    if checked_at is None:
        return None
    of_instant = results.filter(pl.col("checked_at") == checked_at, *where)
    rows = of_newest(of_instant.select({*columns, "sla", "checked_at", "run_id"}).collect())
    return Check(checked_at, rows["run_id"][0], rows.sort("sla", maintain_order=True).select(columns).to_dicts())


def of_newest(results: pl.DataFrame) -> pl.DataFrame:
    """Returns those of *results* that the newest check wrote; of two checks at one instant, the one whose run sorts
    last.
    """
    newest = results.filter(pl.col("checked_at") == pl.col("checked_at").max())
    return newest.filter(pl.col("run_id").eq_missing(newest["run_id"].max()))
