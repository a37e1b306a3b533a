"""The account of a window's age, from its end to the instant at which its first result is visible.

A window first waits for `allowed_lateness`, if its operator sends it only when it is closed, and then for the bound.
After that it waits for the record, or the silence, that let the last partition pass (`passing.py`). Then the account of
that record goes on.
"""

from __future__ import annotations

import polars as pl

from tidemark.account.facts import MS
from tidemark.account.ledger import Ledger
from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.bound import BOUND
from tidemark.account.owners.next_record import NEXT_RECORD
from tidemark.account.owners.silence import SILENCE
from tidemark.account.owners.unknown import UNKNOWN
from tidemark.account.passing import last_passing
from tidemark.account.records import (
    VISIBLE,
    ahead_steps,
    behind_hop,
    between,
    in_order,
    numbered,
    placed,
    reading_steps,
    step,
    unread_steps,
)
from tidemark.account.steps import AGES, input_partition, parts_of

_BEFORE_ALL = 1_000
"""A depth that no hop has, so that its steps come first: windows wait before the record that closes them is there."""


def window_parts(ledger: Ledger, windows: pl.DataFrame | None = None) -> pl.DataFrame:
    """Returns the PARTS of *windows*, rows of WINDOWS; None stands for all in the facts. `result` is the row's
    number.
    """
    visible = ledger.made_visible(numbered(ledger.facts.windows if windows is None else windows))
    passing = last_passing(ledger, visible)
    producer = visible.join(
        passing.select("result", producer=input_partition()), on="result", how="left", maintain_order="left"
    )
    ages = producer.with_columns(start_ms="end_ms")
    closed_ms, allowed = pl.col("end_ms") + pl.col("allowed_ms"), pl.lit(ALLOWED_LATENESS)
    waited = step(visible, _BEFORE_ALL, 0, closed_ms, owner=allowed, detail=pl.col("place"))
    steps = pl.concat([waited, _window_steps(ledger, visible, passing, 0)])
    return parts_of(ages.select(AGES.names()), in_order(steps), ledger.timeline)


def _window_steps(ledger: Ledger, visible: pl.DataFrame, passing: pl.DataFrame, depth: int) -> pl.DataFrame:
    """Returns the steps of windows, as records.step.

    Args:
        ledger: the ledger of the streams.
        visible: WINDOWS from `Ledger.made_visible`.
        passing: what let the last partition pass each of them, PASSING.
        depth: the number of hops between these windows and those that the account is about.
    """
    rows = visible.join(passing, on="result", how="left", maintain_order="left")
    rows = placed(
        ledger, rows.with_columns(read_batch=pl.coalesce("read_batch", "batch_id"), is_read=pl.lit(value=True))
    )
    by_record, silent, of_hops = (rows.filter(pl.col("kind") == kind) for kind in ("record", "silence", "hop"))
    unknown = rows.filter((pl.col("kind") == "unknown") | pl.col("kind").is_null())
    # If clocks leave open which partition passed last, the error of the last step is not known.
    is_sure, error_ms = ~pl.col("is_doubtful").fill_null(value=False), between("driver", "clock_error_ms")
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    at_bound_ms, silence = closed_ms + pl.col("bound_ms"), pl.lit(SILENCE)
    # Behind a hop, the window of the writer has waited for the bound.
    of_sources = rows.filter(pl.col("kind") != "hop")
    return pl.concat(
        [
            step(of_sources, _BEFORE_ALL, 1, at_bound_ms, owner=pl.lit(BOUND), detail=pl.col("input")),
            step(by_record, _BEFORE_ALL, 2, "event_ms", owner=pl.lit(NEXT_RECORD), detail=input_partition()),
            step(silent, _BEFORE_ALL, 2, "at_ms", owner=silence, detail=pl.col("whose"), error_ms="read_error_ms"),
            step(unknown, _BEFORE_ALL, 2, "looked_ms", owner=pl.lit(UNKNOWN), detail=pl.lit("passing")),
            reading_steps(ledger, by_record, depth),
            *ahead_steps(ledger, by_record, depth),
            *_behind_hops(ledger, of_hops, depth),
            *unread_steps(ledger, of_hops, depth),
            step(rows, depth, VISIBLE, "until_ms", stream="stream", error_ms=pl.when(is_sure).then(error_ms)),
        ]
    )


def _behind_hops(ledger: Ledger, rows: pl.DataFrame, depth: int) -> list[pl.DataFrame]:
    """Returns the steps of the batches of writers that let the windows of *rows* pass.

    Each such batch has the account of a window with the same end, which was visible with the mark of the hop.
    """
    if rows.is_empty():
        return []
    closed_ms = pl.col("end_ms") + pl.col("allowed_ms").fill_null(0)
    asked = rows.select(
        "result", "read_error_ms", stream="writer", place="input", batch_id="writer_batch", end_ms=closed_ms
    )
    of_window = ["stream", "place", "batch_id", "end_ms"]
    marks = ledger.facts.marks.drop("watermark_ms")
    windows = asked.select(of_window).unique(maintain_order=True).join(marks, on=of_window[:3])
    origins = ledger.made_visible(numbered(windows.with_columns(allowed_ms=pl.lit(None, MS))))
    steps = _window_steps(ledger, origins, last_passing(ledger, origins), depth + 1)
    links = asked.join(origins.select(*of_window, origin="result"), on=of_window)
    return [behind_hop(steps, origins, links, depth)]
