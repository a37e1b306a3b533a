"""Reads a sample with the functions of the streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from tidemark.kernels.columns.schemas import HEADERS
from tidemark.kernels.records.arrivals import with_future
from tidemark.kernels.records.json_fields import json_fields
from tidemark.kernels.records.marks import MARK
from tidemark.model.kinds.source import Source
from tidemark.model.toml_operators import read_operator
from tidemark.sample.disorder import behind_ms
from tidemark.sample.topic_sample import SampledRecord, TopicSample
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


def records_of(sample: TopicSample) -> list[SampledRecord]:
    """Returns the records of *sample* that are not marks of time."""
    return [record for record in sample.records if MARK not in dict(record.headers)]


def parse_sample(source: Source, sample: TopicSample, now_ms: int, schemas: SchemasOf = no_schemas) -> pl.DataFrame:
    """Returns the rows that *source* has of *sample* at *now_ms*.

    *now_ms* is the decision time, and *schemas* gets those of registries. Rows are ordered by partition and offset.
    Marks of time are no records, and left out.
    """
    records: list[dict[str, object]] = []
    for record in records_of(sample):
        headers = [{"key": name, "value": value} for name, value in record.headers]
        place = {"partition": record.partition, "offset": record.offset, "clock_ms": record.timestamp_ms}
        records.append({"key": record.key, "value": record.value, **place, "headers": headers})
    raw = pl.DataFrame(records, schema=_RAW).with_columns(source=pl.lit(source.name))
    return with_future(source, parsing.parsed(source, raw, schemas(raw, [source])), now_ms).sort("partition", "offset")


def source_of(fields: Iterable[str], **keys: str) -> Source:
    """Returns the source of a topic with *fields* and further *keys*, all as a topology's file has them."""
    table = {"kind": Source.kind, "topic": "sampled", "fields": ", ".join(fields), "bound": "0 s", **keys}
    source, mistakes = read_operator("", "records", table, folder=None)
    assert isinstance(source, Source), mistakes
    return source


def is_read(source: Source, records: Sequence[SampledRecord]) -> list[bool]:
    """Returns for each of *records* if *source*, which reads JSON, can read its fields."""
    values = pl.Series([record.value for record in records], dtype=pl.Binary)
    others = source.other_fields is not None
    time, limits = source.time_field, source.record_limits
    fields = json_fields(values, source.types_of_fields, time=time, others=others, limits=limits)
    return fields.reasons.is_null().to_list()


def usable(rows: pl.DataFrame) -> pl.DataFrame:
    """Returns those *rows* that a stream uses and that have a time."""
    return rows.filter(pl.col("reason").is_null(), pl.col("timestamp_ms").is_not_null())


def lags_ms(rows: pl.DataFrame, now_ms: int) -> list[int]:
    """Returns how far each usable row is behind the newest before it in its partition, in ms."""
    return behind_ms(usable(rows).select("partition", "timestamp_ms").iter_rows(), now_ms)


def newest_ms(rows: pl.DataFrame) -> int | None:
    """Returns the newest time of usable *rows*; None without any."""
    newest = rows.filter(pl.col("reason").is_null())["timestamp_ms"].max()
    return newest if isinstance(newest, int) else None
