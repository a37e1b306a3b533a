"""When each key of a sink with current rows was last asserted, by updates that were sent on or suppressed.

A deletion ends what was known of its key: neither assertions before it nor those of the row that it deletes count.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl

from tidemark.kernels.schemas import instants

LAST_SEEN_AT = "last_seen_at"
SEEN_ONLY, SEEN_ANEW = "_seen_only", "_seen_anew"
"""Of a row for a sink: it says of its key only when that was last seen; its key was deleted in the same batch."""
_AT = "_last_seen_ms"


def with_last_seen(records: pl.DataFrame, asserted: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """*records* of a sink, with the newest time at which their *key* is *asserted* (updates in their order).

    A key that is asserted and is in no record gets one row, in which all else is null.
    """
    lives = asserted.with_columns(_life=pl.col("_deleted").cast(pl.Int64).cum_sum().over(key))
    is_last = (pl.col("_life") == pl.col("_life").max().over(key)) & ~pl.col("_deleted")
    seen = lives.filter(is_last).group_by(key, maintain_order=True)
    seen_ms = seen.agg(pl.col("_timestamp_ms").max().alias(_AT), (pl.col("_life") > 0).any().alias(SEEN_ANEW))
    told = records.join(seen_ms, on=key, how="left", nulls_equal=True, maintain_order="left")
    others = seen_ms.join(records, on=key, how="anti", nulls_equal=True, maintain_order="left")
    others = others.with_columns(pl.lit(value=True).alias(SEEN_ONLY), _deleted=pl.lit(value=False))
    return pl.concat([told.with_columns(pl.lit(value=False).alias(SEEN_ONLY)), others], how="diagonal")


def last_seen_columns(columns: Collection[str]) -> dict[str, pl.Expr]:
    """What a table is told of records with these *columns*; nothing where they do not say when a key was seen."""
    if _AT not in columns:
        return {}
    return {LAST_SEEN_AT: instants(_AT), SEEN_ONLY: pl.col(SEEN_ONLY), SEEN_ANEW: pl.col(SEEN_ANEW)}


def merged_last_seen(new: pl.DataFrame, known: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """*new* rows of a table, one per *key*, each with the newest time of its key, also of the rows *known* so far.

    A row that says only that becomes the known one of its key, with this time; where none is known there is none.
    """
    was = known.select(*key, _was=pl.coalesce(LAST_SEEN_AT, "timestamp"))
    newest = pl.max_horizontal(LAST_SEEN_AT, pl.when(~pl.col(SEEN_ANEW)).then("_was"))
    timed = new.join(was, on=key, how="left", nulls_equal=True, maintain_order="left").with_columns(
        newest.alias(LAST_SEEN_AT)
    )
    seen = timed.filter(SEEN_ONLY).select(*key, LAST_SEEN_AT)
    again = known.drop(LAST_SEEN_AT).join(seen, on=key, how="inner", nulls_equal=True, maintain_order="right")
    whole = timed.filter(~pl.col(SEEN_ONLY)).drop("_was", SEEN_ONLY, SEEN_ANEW)
    return pl.concat([whole, again.with_columns(deleted=pl.lit(value=False))], how="diagonal")
