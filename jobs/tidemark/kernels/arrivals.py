"""What one batch read of one source: the records its readers get, and those that are set aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tidemark.kernels import META
from tidemark.semantics.event_time import Seen
from tidemark.spec.operators import HopSource, Source


@dataclass(frozen=True)
class Arrivals:
    """The rows of one source, told apart: `on_time` for its readers, `late` behind the watermark, `bad` not usable."""

    on_time: pl.DataFrame
    late: pl.DataFrame
    bad: pl.DataFrame

    @property
    def measured(self) -> pl.DataFrame:
        """All that have a usable record time: late records count in the source's latency (KIP-613)."""
        late = self.late.select(_timestamp_ms="timestamp_ms", _task="partition")
        return pl.concat([self.on_time.select("_timestamp_ms", "_task"), late])

    def seen(self, read_to: Mapping[int, int]) -> dict[int, Seen]:
        """Per partition with rows: offsets and newest record; *read_to* is where earlier batches ended."""
        newest = dict(self.measured.group_by("_task").agg(pl.col("_timestamp_ms").max()).iter_rows())
        rows = pl.concat(
            [
                self.on_time.select(partition="_partition", offset="_offset"),
                self.late.select("partition", "offset"),
                self.bad.select("partition", "offset"),
            ]
        )
        ends = rows.group_by("partition").agg(first=pl.col("offset").min(), last=pl.col("offset").max())
        return {
            partition: Seen(
                from_offset=read_to.get(partition, first),
                until_offset=last + 1,
                max_timestamp_ms=newest.get(partition),
            )
            for partition, first, last in ends.iter_rows()
        }


def kafka_arrivals(source: Source, raw: pl.DataFrame, *, late_up_to_ms: int | None) -> Arrivals:
    """The rows of *source* in *raw* in offset order; a record at or before *late_up_to_ms* is late (None: none is)."""
    rows = raw.filter(pl.col("source") == source.name).sort("partition", "offset")
    usable = rows.filter(pl.col("reason").is_null())
    late = pl.col("timestamp_ms") <= pl.lit(late_up_to_ms, pl.Int64)
    on_time = usable.filter(~late.fill_null(value=False))
    payload = pl.col(source.name).struct.field(*source.fields)
    records = on_time.select(
        payload,
        _key=pl.col("key").cast(pl.String),
        _timestamp_ms="timestamp_ms",
        _partition="partition",
        _offset="offset",
        _task="partition",
    )
    return Arrivals(records, usable.filter(late.fill_null(value=False)), rows.filter(pl.col("reason").is_not_null()))


@dataclass(frozen=True)
class HopArrivals:
    """The rows behind a hop: records, and what their upstream said of its time: watermark, and windows it closed."""

    records: pl.DataFrame
    watermark_ms: int | None
    windows: tuple[int, ...]
    last_batch: int | None


def hop_arrivals(source: HopSource, raw: pl.DataFrame) -> HopArrivals:
    """The rows of *source* in *raw*, in the order in which the upstream wrote them."""
    rows = raw.filter(pl.col("source") == source.name)
    rows = rows.select("partition", "offset", "timestamp_ms", pl.col(source.name).struct.unnest()).sort("offset", "seq")
    is_mark = pl.col("watermark_ms").is_not_null()
    marks = rows.filter(is_mark)
    records = rows.filter(~is_mark).select(
        "value",
        "old_value",
        _key="key",
        _timestamp_ms="timestamp_ms",
        _partition="source_partition",
        _offset="source_offset",
        _task="partition",
    )
    starts = marks["value"].str.json_decode(pl.List(pl.Int64)).explode().drop_nulls()
    return HopArrivals(
        records.select(*("value", "old_value"), *META),
        marks["watermark_ms"].max(),  # type: ignore[arg-type]
        tuple(starts),
        rows["offset"].max(),  # type: ignore[arg-type]
    )
