"""Tracks when each key of a current-rows sink was last asserted.

An update asserts its key, whether it is sent on or suppressed. A deletion ends the history of its key: neither
assertions before it nor assertions of the row that it deletes count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from tidemark.kernels.columns.schemas import instants

LAST_SEEN_AT = "last_seen_at"
SEEN_ONLY, SEEN_ANEW = "_seen_only", "_seen_anew"
"""Columns of a row for a sink. SEEN_ONLY is true if the row only says when its key was last seen. SEEN_ANEW is true if
its key was deleted before in the same batch, so that earlier times no longer count."""
_AT = "_last_seen_ms"


def with_last_seen(records: pl.DataFrame, asserted: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Adds to the *records* of a sink when their *key* was last asserted.

    *asserted* are all updates, suppressed ones too, in their order. A key that only suppressed updates assert gets a
    row in which all else is null.
    """
    # A life of a key ends with its deletion; only the last one counts.
    lives = asserted.with_columns(_life=pl.col("_deleted").cast(pl.Int64).cum_sum().over(key))
    is_last = (pl.col("_life") == pl.col("_life").max().over(key)) & ~pl.col("_deleted")
    last_updates = lives.filter(is_last).group_by(key, maintain_order=True)
    seen_ms = last_updates.agg(pl.col("_timestamp_ms").max().alias(_AT), (pl.col("_life") > 0).any().alias(SEEN_ANEW))
    timed = records.join(seen_ms, on=key, how="left", nulls_equal=True, maintain_order="left")
    others = seen_ms.join(records, on=key, how="anti", nulls_equal=True, maintain_order="left")
    others = others.with_columns(pl.lit(value=True).alias(SEEN_ONLY), _deleted=pl.lit(value=False))
    return pl.concat([timed.with_columns(pl.lit(value=False).alias(SEEN_ONLY)), others], how="diagonal")


def last_seen_columns(columns: Collection[str]) -> dict[str, pl.Expr]:
    """Returns the table columns for last-seen times, if *columns* have them."""
    if _AT not in columns:
        return {}
    return {LAST_SEEN_AT: instants(_AT), SEEN_ONLY: pl.col(SEEN_ONLY), SEEN_ANEW: pl.col(SEEN_ANEW)}


def newest_rows(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Reduces *rows* of several batches to the newest of each *key*.

    The result is what one batch with all *rows* would have had.

    Args:
        rows: rows for the table, in the order of their batches.
        key: the columns of the key.
    """
    if SEEN_ONLY not in rows.columns:
        return rows.unique(key, keep="last", maintain_order=True)
    # A life of a key begins with its deletion, or where its time begins anew.
    life = (pl.col("deleted") | pl.col(SEEN_ANEW)).cast(pl.Int64).cum_sum().over(key)
    in_life = rows.with_columns(_life=life).with_columns(_newest_life=pl.col("_life").max().over(key))
    is_counted = (pl.col("_life") == pl.col("_newest_life")) & ~pl.col("deleted")
    # The time at which a key was last seen is the newest one since its last deletion.
    newest_seen_at = pl.when(is_counted).then(LAST_SEEN_AT).max().over(key)
    dated = in_life.with_columns(newest_seen_at.alias(LAST_SEEN_AT), (pl.col("_newest_life") > 0).alias(SEEN_ANEW))
    by_weight = dated.sort(~pl.col(SEEN_ONLY), maintain_order=True)  # a whole row says more than one of a time alone
    return by_weight.unique(key, keep="last", maintain_order=True).drop("_life", "_newest_life")


def merged_last_seen(new: pl.DataFrame, stored: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Returns *new* rows with the newest time at which their *key* was seen, be that in the new or in the stored row.

    A row that only says when its key was seen becomes the stored row of the key with the new time; without a stored row
    it is dropped.

    Args:
        new: rows for the table, one per key.
        stored: the stored rows of these keys.
        key: the columns of the key.
    """
    # Rows from before `last_seen_at` was set have none: their record time is the last one known.
    was = stored.select(*key, _was=pl.coalesce(LAST_SEEN_AT, "timestamp"))
    newest = pl.max_horizontal(LAST_SEEN_AT, pl.when(~pl.col(SEEN_ANEW)).then("_was"))
    timed = new.join(was, on=key, how="left", nulls_equal=True, maintain_order="left").with_columns(
        newest.alias(LAST_SEEN_AT)
    )
    confirmations = timed.filter(SEEN_ONLY).select(*key, LAST_SEEN_AT)
    again = stored.drop(LAST_SEEN_AT).join(confirmations, on=key, how="inner", nulls_equal=True, maintain_order="right")
    whole = timed.filter(~pl.col(SEEN_ONLY)).drop("_was", SEEN_ONLY, SEEN_ANEW)
    return pl.concat([whole, again.with_columns(deleted=pl.lit(value=False))], how="diagonal")
