"""Divides the ages of streaming windows by the account of time.

A window ages at the leaf of its critical path, from its end until the leaf had finished it. Instants are epoch ms,
lengths ms.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.clocks import DRIVER, JITTER_MS
from tidemark.account.excess import ENOUGH, OWNED, median_of_all
from tidemark.account.ledger import Ledger
from tidemark.account.now import StreamsNow
from tidemark.account.owners.clock import CLOCK
from tidemark.account.timeline import overlay
from tidemark.account.warehouse import AccountTables
from tidemark.account.windows import window_parts
from tidemark.facts.report_rows import lies_in
from tidemark.model.settings.intervals import Interval
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.tables.catalog import WINDOW_PARTS
from tidemark.model.topology import SubTopology

LOOKS_BACK_MS = 3_600_000
"""Facts are read from so long before the end of the first window: a silence or an absence may have begun then."""
AGED = ["window_start", "window_end", "leaf", "over_sla", "age_ms"]
"""Columns of critical_paths by which a window is aged; `age_ms` is its age there, null: it has another leaf."""
PARTS = pl.Schema(
    {
        "window_start": pl.Datetime("us", "UTC"),
        "window_end": pl.Datetime("us", "UTC"),
        "owner": pl.String(),
        "detail": pl.String(),
        "stream": pl.String(),
        "ms": pl.Int64(),
        "error_ms": pl.Int64(),
        "over_sla": pl.Boolean(),
    }
)


def window_ages(ledger: Ledger, aged: pl.DataFrame) -> pl.DataFrame:
    """Returns the PARTS of the windows *aged*, which have AGED: those of a window add up to its age.

    The age is by the reference clock, as instants of several hosts are compared in critical paths. That clock is read
    in two ways, which may differ by some ms: the last part ends where the age of critical paths does. What is more than
    that is a part of the leaf's clock, whose offset was not known when the window was finished, or another one.
    """
    ends = aged.select(*AGED, end_ms=pl.col("window_end").dt.epoch("ms"), place="leaf")
    first = ledger.facts.windows.unique(["place", "end_ms"], keep="first", maintain_order=True)
    windows = first.join(ends, on=["place", "end_ms"], maintain_order="left")
    hosts = windows.join(ledger.clocks.select(*DRIVER, "host"), on=DRIVER, how="left", maintain_order="left")
    whose = hosts.with_row_index("result").select(pl.col("result").cast(pl.Int64), "host", *AGED)
    parts = window_parts(ledger, windows.select(ledger.facts.windows.columns)).filter(pl.col("owner") != CLOCK)
    found = parts.join(whose, on="result", maintain_order="left").with_columns(_lacking().over("result"))
    is_of_clock = pl.col("lacking_ms").abs() > JITTER_MS
    of_clock = found.filter(is_of_clock).unique("result", keep="first", maintain_order=True)
    of_clock = of_clock.select(*AGED, owner=pl.lit(CLOCK), detail="host", ms="lacking_ms")
    reaching_ms = pl.col("ms") + pl.when(_is_last().over("result") & ~is_of_clock).then("lacking_ms").otherwise(0)
    return _summed(pl.concat([found.with_columns(ms=reaching_ms), of_clock], how="diagonal"))


def _lacking() -> pl.Expr:
    """Returns by how much the parts of a window are shorter than its age, `lacking_ms`."""
    return (pl.col("age_ms").first() - pl.col("ms").sum()).fill_null(0).alias("lacking_ms")


def _is_last() -> pl.Expr:
    """Returns True for the last of a window's parts that may lack `lacking_ms` and stays above 0."""
    ended_ms = pl.when(pl.col("ms") > -pl.col("lacking_ms")).then(pl.col("ended_ms"))
    return pl.int_range(pl.len()) == pl.coalesce(ended_ms.arg_max(), 0)


def unfinished_age(now: StreamsNow, reached: pl.DataFrame, behind: SubTopology) -> pl.DataFrame:
    """Returns the PARTS of the age of a window that the driver of *behind* has not finished.

    *reached* is a row with AGED, whose leaf is the operator before it: since that one finished the window, the time is
    that of the driver.
    """
    ledger, reached = Ledger.of(now.facts), reached.with_columns(age_ms=pl.lit(None, pl.Int64))
    parts, end_ms = window_ages(ledger, reached), reached["window_end"].dt.epoch("ms").item()
    since_ms = end_ms + int(parts["ms"].sum())
    span = {"stream": [now.name(behind)], "began_ms": [since_ms], "ended_ms": [now.at_ms], "error_ms": [0]}
    own = overlay(pl.DataFrame(span), ledger.timeline).join(reached.select(AGED), how="cross")
    return _summed(pl.concat([parts, own], how="diagonal_relaxed"))


def _summed(parts: pl.DataFrame) -> pl.DataFrame:
    is_known = pl.col("error_ms").is_not_null().all()
    return (
        parts.group_by("window_start", "window_end", *OWNED, "over_sla", maintain_order=True)
        .agg(pl.sum("ms"), error_ms=pl.when(is_known).then(pl.sum("error_ms")))
        .filter(pl.col("ms") != 0)
        .select(PARTS.names())
        .cast(PARTS)
    )


def with_usual(parts: pl.DataFrame, kept: pl.DataFrame) -> pl.DataFrame:
    """Returns *parts* with `usual_ms`, the median of the same part in windows that kept their SLAs.

    *kept* has PARTS of such windows. Fewer than ENOUGH windows say nothing: then it is null.
    """
    windows = kept.select(pl.col("window_start").n_unique()).item()
    if windows < ENOUGH:
        return parts.with_columns(usual_ms=pl.lit(None, pl.Int64()))
    # In windows without a part it took 0 ms.
    rows = [
        (*owned, median_of_all(of["ms"], pl.repeat(1, of.height, eager=True), windows))
        for owned, of in kept.group_by(OWNED, maintain_order=True)
    ]
    usual = pl.DataFrame(rows, {**{name: PARTS[name] for name in OWNED}, "usual_ms": pl.Int64()}, orient="row")
    found = parts.join(usual, on=OWNED, how="left", maintain_order="left", nulls_equal=True)
    return found.with_columns(pl.col("usual_ms").fill_null(0))


def kept_before(tables: AccountTables, end_ms: int) -> pl.DataFrame:
    """Returns the reported PARTS of windows of the day before *end_ms* that broke no SLA."""
    rows = tables.stored.scan(tables.layout.report_table(tables.topology.name, WINDOW_PARTS.name))
    if rows is None:
        return PARTS.to_frame()
    day = lies_in("window_end", Interval(end_ms - DAY_MS, end_ms))
    return rows.filter(day, kept_its_slas()).select(PARTS.names()).collect().cast(PARTS)


def kept_its_slas() -> pl.Expr:
    """Returns True for windows that broke no SLA: they say what is usual."""
    return ~pl.col("over_sla").fill_null(value=False)


def ledger_over(tables: AccountTables, ends: pl.Series, *, at_ms: int) -> Ledger:
    """Returns the account of all streams while windows aged that ended at *ends*, until *at_ms*."""
    since_ms = ends.dt.epoch("ms").min()
    assert isinstance(since_ms, int)
    recorded = tables.recorded(since_ms=since_ms - LOOKS_BACK_MS, at_ms=at_ms, has_before=False)
    return recorded.ledger(tables.topology)
