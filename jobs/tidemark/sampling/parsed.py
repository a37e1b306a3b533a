"""What a source would make of a sample of its topic, by the functions of the streams."""

from __future__ import annotations

import polars as pl

from tidemark.kernels.arrivals import with_future
from tidemark.kernels.marks import MARK
from tidemark.kernels.schemas import HEADERS
from tidemark.sampling.disorder import behind_ms
from tidemark.sampling.topic_sample import Sample
from tidemark.spec.operators import Source
from tidemark.stream.read.parsing import parsed as parsed_rows

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


def parsed(source: Source, sample: Sample, now_ms: int) -> pl.DataFrame:
    """The rows that *source* has of *sample* in a batch decided at *now_ms*, by partition and offset.

    Marks of time are no records, and left out.
    """
    records = [
        {
            "key": record.key,
            "value": record.value,
            "partition": record.partition,
            "offset": record.offset,
            "clock_ms": record.timestamp_ms,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in sample.records
        if not any(name == MARK for name, _ in record.headers)
    ]
    raw = pl.DataFrame(records, schema=_RAW).with_columns(source=pl.lit(source.name))
    return with_future(source, parsed_rows(source, raw), now_ms).sort("partition", "offset")


def behind(rows: pl.DataFrame, now_ms: int) -> list[int]:
    """How far each usable one of *rows* that has a time is behind the newest before it in its partition, ms."""
    usable = rows.filter(pl.col("reason").is_null(), pl.col("timestamp_ms").is_not_null())
    return behind_ms(usable.select("partition", "timestamp_ms").iter_rows(), now_ms)


def newest_ms(rows: pl.DataFrame) -> int | None:
    """The newest time of usable *rows*; None without any."""
    newest = rows.filter(pl.col("reason").is_null())["timestamp_ms"].max()
    return newest if isinstance(newest, int) else None
