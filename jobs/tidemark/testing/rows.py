"""Makes the rows that a stream reads, without Spark: records of sources, and what a hop has handed on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from tidemark.kernels.columns.schemas import HEADERS, record_schema
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import steps
from tidemark.model.settings.intervals import iso
from tidemark.model.topology import SubTopology
from tidemark.stream.read.parsing import parsed
from tidemark.testing.file_format import GivenRecord, GivenRecords, in_json

RAW = {
    "source": pl.String(),
    "partition": pl.Int32(),
    "offset": pl.Int64(),
    "key": pl.Binary(),
    "value": pl.Binary(),
    "headers": HEADERS,
}
WRITTEN = pl.Struct({"at_ms": pl.Int64(), "file": pl.String(), "start": pl.Int64()})
PARSED = {
    **RAW,
    "deleted": pl.Boolean(),
    "timestamp_ms": pl.Int64(),
    "stamped_ms": pl.Int64(),
    "reason": pl.String(),
    "sampled": pl.String(),
}
HOP = pl.Struct(
    {
        "seq": pl.Int64(),
        "id": pl.String(),
        "key": pl.String(),
        "old_value": pl.String(),
        "value": pl.String(),
        "old_timestamp_ms": pl.Int64(),
        "source_partition": pl.Int32(),
        "source_offset": pl.Int64(),
        "watermark_ms": pl.Int64(),
        "idle": pl.Boolean(),
        "newest_ms": pl.Int64(),
        "repeated": pl.Boolean(),
        "result_row": pl.Int64(),
        "idle_watermark_ms": pl.Int64(),
    }
)
"""The columns of a hop's rows, as its readers have them."""
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def rows_schema(sub: SubTopology) -> dict[str, pl.DataType]:
    """Returns the columns of the parsed rows of a batch of *sub*."""
    structs: dict[str, pl.DataType] = {}
    for source in sub.outside_sources:
        kinds = record_schema(source.columns)
        structs[source.name] = pl.Struct({column: kinds[column] for column in source.columns})
        if source.topic is None:
            structs["written"] = WRITTEN
    return {**PARSED, **structs, **{hop.name: HOP for hop in sub.hops_read}}


def rows_of_hop(source: HopSource, rows: pl.DataFrame) -> pl.DataFrame:
    """Returns *rows* of the table of a hop as *source*, which reads it, has them."""
    instants = ("old_timestamp", "watermark", "newest", "idle_watermark")
    in_ms = [pl.col(name).dt.epoch("ms").alias(f"{name}_ms") for name in instants]
    fields = rows.with_columns(in_ms).select(HOP.to_schema().keys())
    return rows.select(
        "partition",
        "headers",
        source=pl.lit(source.name),
        offset="batch_id",
        timestamp_ms=pl.col("timestamp").dt.epoch("ms"),
        **{source.name: fields.to_struct()},
    )


def rows_of_arrival(
    source: Source, arrival: GivenRecords, offsets: Counter[tuple[str, int]], sent_ms: int
) -> pl.DataFrame:
    """Returns the records of *arrival* at *source*, parsed as a stream does it.

    Args:
        source: the source.
        arrival: the records.
        offsets: the next offset of each source and partition, which are counted on.
        sent_ms: Kafka's time of records without a time of their own, epoch ms.
    """
    rows = []
    for record in arrival.records:
        place = (source.name, record.partition)
        sent_at_ms = sent_ms if record.timestamp_ms is None else record.timestamp_ms
        rows.append(
            {
                "source": source.name,
                "partition": record.partition,
                "offset": offsets[place],
                "key": None if record.key is None else record.key.encode(),
                "value": _bytes(source, record),
                "headers": [{"key": name, "value": text.encode()} for name, text in (record.headers or {}).items()],
                "clock_ms": sent_at_ms,
                "written": {"at_ms": sent_ms},
                "is_object": fields_of(record.value) is not None,
            }
        )
        offsets[place] += 1
    schema = {**RAW, "clock_ms": pl.Int64(), "written": WRITTEN, "is_object": pl.Boolean()}
    raw = pl.DataFrame(rows, schema=schema).drop("written" if source.topic else ())
    # A record of another format is given by its fields, or by text that is not of the format.
    is_json = pl.col("is_object") | pl.lit(value=source.topic is None)
    as_json = replace(source, format=Format.JSON, registry=None)
    parts = [(as_json, raw.filter(is_json)), (source, raw.filter(~is_json))]
    return pl.concat([parsed(each, rows.drop("is_object")) for each, rows in parts], how="diagonal")


def fields_of(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the fields of a record with *value*; None: it has none, or they cannot be read."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return dict(value) if isinstance(value, Mapping) else None


def _bytes(source: Source, record: GivenRecord) -> bytes | None:
    """Returns the value of *record*; an object gets its time in the field that *source* reads, unless it has one."""
    fields = fields_of(record.value)
    if fields is not None and source.time_field is not None and record.timestamp_ms is not None:
        filled = _filled(fields, steps(source.time_field), _time(source, record.timestamp_ms))
        if filled != fields:
            return json.dumps(filled, default=in_json).encode()
    if isinstance(record.value, str):
        return record.value.encode()
    return None if record.value is None else json.dumps(record.value, default=in_json).encode()


def _filled(fields: Any, path: Sequence[str], value: object) -> Any:
    """Returns *fields* with *value* at *path*, unless there is something."""
    name, *inner = path
    if not isinstance(fields, dict):
        return fields
    return {**fields, name: _filled(fields.get(name, {}), inner, value)} if inner else {name: value, **fields}


def _time(source: Source, at_ms: int) -> str | int | float:
    """Returns *at_ms* in the form of the time of *source*."""
    if source.fields[source.timestamp or ""] == "timestamp":
        return iso(at_ms)
    whole, rest = divmod(at_ms * _PER_S[source.timestamp_unit], 1_000)
    return whole + rest / 1_000 if rest else whole
