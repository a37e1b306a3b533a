"""Reads the newest check of a topology's SLAs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

from tidemark.facts.answers import Row
from tidemark.model.settings.intervals import utc
from tidemark.query.stored_tables import StoredTables

COLUMNS = (
    *("sla", "subject", "measure", "verdict", "message", "culprit", "blocked_by"),
    *("observed_ms", "warn_after_ms", "error_after_ms", "excluded_because"),
    *("objective", "target", "threshold_ms", "window_ms", "budget_left", "stale_groups"),
)
"""Columns of `sla_results` that tell what was measured."""


@dataclass(frozen=True)
class Check:
    """A check at `checked_at`, with COLUMNS of each SLA, by name."""

    checked_at: datetime
    rows: Sequence[Row]


def newest_check(stored: StoredTables, path: Path, *, at_ms: int) -> Check | None:
    """Returns the newest check until *at_ms* in the table `sla_results` at *path*; None: there is none."""
    results = stored.scan(path)
    if results is None:
        return None
    # Files without the newest check are not read.
    until = pl.col("checked_at") <= utc(at_ms)
    checked_at = results.filter(until).select(pl.col("checked_at").max()).collect().item()
    if checked_at is None:
        return None
    of_checks = results.filter(pl.col("checked_at") == checked_at).select(*COLUMNS, "run_id").collect()
    # Of two checks at one instant the one with the later name counts.
    own = of_checks.filter(pl.col("run_id").eq_missing(of_checks["run_id"].max())).drop("run_id")
    return Check(checked_at, own.sort("sla", maintain_order=True).to_dicts())
