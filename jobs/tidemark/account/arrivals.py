"""When records arrived that no broker stamped, and how far the stamps of a broker's clock are off.

A driver looks for the newest offset of each partition. If a look includes the offset of a record, the record had
arrived by then; the last look without that offset was before the arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from tidemark.kernels.columns.quantiles import rank

USUAL_DELAY = 0.02
"""The quantile of (first look with the record − event time) that is the usual delay of a record until it arrives. It is
low, because records with a short delay hardly waited for a look."""
STAMPED = 5
"""The newest batches by whose stamps the offset of a broker's clock is bounded."""


class Offset(NamedTuple):
    """How far a clock is ahead of the driver's clock, ms, give or take `error_ms`."""

    offset_ms: int
    error_ms: int


def usual_delays(reads: pl.DataFrame) -> pl.DataFrame:
    """Returns the usual delay, `usual_ms`, of each `stream`, `input` and `partition`.

    A row of *reads* has these columns, `event_ms`, the number `n` of its records, and the first look that included
    them, `seen_ms`.
    """
    partition = ["stream", "input", "partition"]
    ranked = reads.select(*partition, "n", usual_ms=pl.col("seen_ms") - pl.col("event_ms")).sort("usual_ms")
    usual_rank = rank(pl.sum("n").over(partition), USUAL_DELAY)
    return (
        ranked.filter(pl.col("n").cum_sum().over(partition) > usual_rank)
        .group_by(partition, maintain_order=True)
        .agg(pl.first("usual_ms"))
    )


def with_created_arrivals(reads: pl.DataFrame, usual: pl.DataFrame) -> pl.DataFrame:
    """Returns *reads* of topics with CreateTime, in which no broker stamps arrivals, with estimates of their arrival.

    A record arrived between the last look without it, `excluded_ms` (null if nobody had looked before), and the first
    one with it, `seen_ms`. In that range `arrived_ms` is as close as possible to the event time and the *usual* delay,
    and `arrival_error_ms` reaches to both ends of the range.
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
    """Returns for each of *rows*, in their order, what *begun* says of when its input began.

    *begun* has a row for each begin, with `stream`, `input`, `batch_id` and more columns, which are returned. The
    newest begin up to *batch_id* counts. An input that the stream has always had gets nulls.
    """
    asked = rows.select("stream", "input", batch_id=batch_id).with_row_index("nth").sort("batch_id", nulls_last=True)
    found = asked.join_asof(
        begun.sort("batch_id"), on="batch_id", by=["stream", "input"], check_sortedness=False, coalesce=True
    )
    return found.sort("nth").drop("nth", "stream", "input", "batch_id")


def at_source(looked_ms: str, begun_ms: pl.Series) -> pl.Expr:
    """Returns the instants of looks in the column *looked_ms*, null for a look from before the source began.

    That look was at other sources. *begun_ms* has nulls for sources that the stream has always had.
    """
    return pl.when(begun_ms.is_null() | (pl.col(looked_ms) >= begun_ms)).then(looked_ms)


def stamped_offset(stamps: Iterable[tuple[int, int, int]]) -> Offset | None:
    """Returns how far a broker's clock is ahead of the driver's; None if no offset agrees with all looks.

    Each of *stamps* is about one record of a batch: its stamp by the broker's clock, and by the driver's clock the last
    look without the record and the first look with it. The newest STAMPED stamps count. If 0 agrees with them, the
    offset is 0.
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
