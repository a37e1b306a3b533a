"""When records arrived, where nobody stamped them, and how far a broker's stamps are off.

A look with an offset included shows that the record had arrived, and one without that it had not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from tidemark.kernels.columns.quantiles import rank

USUAL_DELAY = 0.02
"""The quantile of (including look − event time) that is a usual delay: those records hardly waited for a look."""
STAMPED = 5
"""The offset of a broker's clock is bounded by the stamps of this many batches."""


class Offset(NamedTuple):
    """A clock's offset: ms to take off its stamps for the clock that looked, give or take `error_ms`."""

    offset_ms: int
    error_ms: int


def usual_delays(reads: pl.DataFrame) -> pl.DataFrame:
    """Returns `usual_ms`, the usual delay of each `stream`, `input` and `partition`.

    A row has these columns, `event_ms`, `n`, and `seen_ms`, the first look that included its `n` records.
    """
    partition = ["stream", "input", "partition"]
    ranked = reads.select(*partition, "n", usual_ms=pl.col("seen_ms") - pl.col("event_ms")).sort("usual_ms")
    place = rank(pl.sum("n").over(partition), USUAL_DELAY)
    return (
        ranked.filter(pl.col("n").cum_sum().over(partition) > place)
        .group_by(partition, maintain_order=True)
        .agg(pl.first("usual_ms"))
    )


def with_created_arrivals(reads: pl.DataFrame, usual: pl.DataFrame) -> pl.DataFrame:
    """Returns records of topics with CreateTime with `arrived_ms` and `arrival_error_ms`.

    They arrived the usual delay after their event time, or at the end of the range that the looks around them leave:
    `excluded_ms` (null: nobody had looked before) and `seen_ms`. The error reaches to both ends of that range.
    """
    first_ms = pl.col("excluded_ms").fill_null(pl.min_horizontal("event_ms", "seen_ms"))
    arrived_ms = (pl.col("event_ms") + pl.col("usual_ms")).clip(first_ms, pl.col("seen_ms"))
    partition = ["stream", "input", "partition"]
    found = reads.join(usual, on=partition, how="left", maintain_order="left", nulls_equal=True)
    return (
        found.with_columns(arrived_ms=arrived_ms)
        .with_columns(
            arrival_error_ms=pl.max_horizontal(
                pl.col("seen_ms") - pl.col("arrived_ms"), pl.col("arrived_ms") - first_ms
            )
        )
        .drop("usual_ms")
    )


def begun_before(rows: pl.DataFrame, begun: pl.DataFrame, batch_id: pl.Expr) -> pl.DataFrame:
    """Returns, in the order of *rows*, the other columns of *begun* of the newest begin of their input up to the batch.

    *begun* has `stream`, `input` and `batch_id`; an input that has always been there has nulls.
    """
    asked = rows.select("stream", "input", batch_id=batch_id).with_row_index("nth").sort("batch_id", nulls_last=True)
    found = asked.join_asof(
        begun.sort("batch_id"), on="batch_id", by=["stream", "input"], check_sortedness=False, coalesce=True
    )
    return found.sort("nth").drop("nth", "stream", "input", "batch_id")


def at_source(looked_ms: str, begun_ms: pl.Series) -> pl.Expr:
    """Returns the instant of a look; null if it was before the source began, since nobody looked at the source then."""
    return pl.when(begun_ms.is_null() | (pl.col(looked_ms) >= begun_ms)).then(looked_ms)


def stamped_offset(stamps: Iterable[tuple[int, int, int]]) -> Offset | None:
    """Returns by how much a broker's clock is ahead of the one that looked; None: no offset agrees with all looks.

    A stamp is one of a record of each of the newest STAMPED batches, with the last look without it and the first one
    with it, by the clock that looked. An offset that may be 0 is taken for 0.
    """
    newest = list(stamps)[-STAMPED:]
    if not newest:
        return None
    least_ms = max(stamp_ms - seen_ms for stamp_ms, _, seen_ms in newest)
    most_ms = min(stamp_ms - excluded_ms for stamp_ms, excluded_ms, _ in newest)
    if least_ms > most_ms:
        return None
    if least_ms <= 0 <= most_ms:
        return Offset(0, max(-least_ms, most_ms))
    middle_ms = (least_ms + most_ms) // 2
    return Offset(middle_ms, max(middle_ms - least_ms, most_ms - middle_ms))
