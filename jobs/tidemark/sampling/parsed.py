"""Parses a sample with the functions of the streams."""

from __future__ import annotations

import polars as pl

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.records.arrivals import with_future
from tidemark.kernels.records.marks import MARK
from tidemark.model.kinds.source import Source
from tidemark.sampling.disorder import behind_ms
from tidemark.sampling.topic_sample import TopicSample
from tidemark.stream.read import parsing
from tidemark.stream.read.parsing import SchemasOf, no_schemas

_RAW = pl.Schema(
    {
        "key": pl.Binary(),
        "value": pl.Binary(),
        "partition": pl.Int32(),
        "offset": pl.Int64(),
        "clock_ms": pl.Int64(),
        "headers": HEADERS,
    }
)


def parse_sample(source: Source, sample: TopicSample, now_ms: int, schemas: SchemasOf = no_schemas) -> pl.DataFrame:
    """Returns the rows that *source* has of *sample* at *now_ms*.

    *now_ms* is the decision time, and *schemas* gets those of registries. Rows are ordered by partition and offset.
    Marks of time are no records, and left out.
    """
    unmarked = [record for record in sample.records if MARK not in dict(record.headers)]
    records: list[dict[str, object]] = []
    for record in unmarked:
        headers = [{"key": name, "value": value} for name, value in record.headers]
        place = {"partition": record.partition, "offset": record.offset, "clock_ms": record.timestamp_ms}
        records.append({"key": record.key, "value": record.value, **place, "headers": headers})
    raw = pl.DataFrame(records, schema=_RAW).with_columns(source=pl.lit(source.name))
    return with_future(source, parsing.parsed(source, raw, schemas(raw, [source])), now_ms).sort("partition", "offset")


def lags_ms(rows: pl.DataFrame, now_ms: int) -> list[int]:
    """Returns how far each row is behind the newest before it.

    Lengths are ms.

    Rows are compared within their partition; rows without a time are left out.
    """
    usable = rows.filter(pl.col("reason").is_null(), pl.col("timestamp_ms").is_not_null())
    return behind_ms(usable.select("partition", "timestamp_ms").iter_rows(), now_ms)


def newest_ms(rows: pl.DataFrame) -> int | None:
    """Returns the newest time of usable *rows*; None without any."""
    newest = rows.filter(pl.col("reason").is_null())["timestamp_ms"].max()
    return newest if isinstance(newest, int) else None
