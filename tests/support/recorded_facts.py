"""Facts of the account of time, as the tables of a warehouse have them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import polars as pl

from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.recorded import Recorded, with_usual
from tidemark.account.windows import window_parts
from tidemark.facts.fact_tables import nothing_in
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import TABLES
from tidemark.model.topology import Topology
from tidemark.storage.delta.tables import scan
from tidemark.storage.warehouse import is_table

TABLES_READ = [field.name for field in fields(Recorded) if field.name != "told_later"]


def recorded_facts(warehouse: Path, topology: Topology) -> AccountFacts:
    """Returns what the drivers of *topology* have recorded in *warehouse*."""
    streams = [sub.name for sub in topology.sub_topologies]
    tables = {
        name: pl.concat(
            scan(path).collect() if is_table(path) else nothing_in(TABLES[name]).collect()
            for stream in streams
            for path in [Layout(warehouse).stream_table(topology.name, stream, name)]
        )
        for name in TABLES_READ
    }
    return with_usual(Recorded(**tables).facts(topology))


def ages_and_sums(warehouse: Path, topology: Topology) -> pl.DataFrame:
    """Returns the age of each window from its row, and the sum of its parts: `age_ms`, `sum_ms` and `unknown_ms`."""
    facts = recorded_facts(warehouse, topology)
    windows = facts.windows.with_row_index("result").cast({"result": pl.Int64})
    is_unknown = pl.col("owner") == "unknown"
    sums = (
        window_parts(Ledger.of(facts))
        .group_by("result")
        .agg(sum_ms=pl.sum("ms"), unknown_ms=pl.col("ms").filter(is_unknown).sum())
    )
    ages = windows.with_columns(age_ms=pl.col("visible_ms") - pl.col("end_ms"))
    return ages.join(sums, on="result", how="left", maintain_order="left")
