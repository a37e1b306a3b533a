"""Encodes the records that a sink sends to its topic."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pkgutil import resolve_name
from typing import Any

import fastavro
import polars as pl
from fastavro.schema import SchemaParseException, UnknownType

from tidemark.kernels import payload
from tidemark.kernels.columns.schemas import INSTANT
from tidemark.kernels.columns.values import value_text
from tidemark.kernels.records.fields import ERRORS_OF_RECORDS, described
from tidemark.model.kinds.kafka_end import TOPIC_FORMATS, Format
from tidemark.model.kinds.sink import Sink
from tidemark.stream.kafka.broker import RefusedRecord

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Misfit:
    """Stands in place of the value of a record that does not fit the Avro schema or the format of its sink."""

    problem: str


def to_send(sink: Sink, rows: pl.DataFrame) -> tuple[dict[int, bytes | str | None], list[RefusedRecord]]:
    """Encodes *rows* and separates those that do not fit the schema.

    Returns:
        The value of each row by its index, None if the row deletes its key; and the rows that do not fit.
    """
    values: dict[int, bytes | str | None] = {}
    refused: list[RefusedRecord] = []
    for row, value in enumerate(encoded(sink, rows)):
        # The row fitted when its batch was decided: the schema was changed before the batch was carried out.
        if isinstance(value, Misfit):
            refused.append(RefusedRecord(row, value.problem))
        else:
            values[row] = value
    return values, refused


def encoded(sink: Sink, rows: pl.DataFrame) -> Iterable[bytes | str | Misfit | None]:
    """Encodes the value of each of *rows* in the sink's format.

    A row that deletes its key has the value None, and a row that does not fit the schema a Misfit. JSON has all
    columns, and so have formats of other packages, which are made of JSON. Avro has those for which the schema has a
    field. Instants are text in JSON. In Avro they have the field's logical type, or are epoch ms in a plain `long`.
    """
    columns = payload(rows.columns)
    if sink.format is Format.AVRO:
        return _avro(sink, rows.select(*columns, "_deleted"))
    texts = rows.select(pl.when(~pl.col("_deleted")).then(value_text(columns, rows.schema))).to_series()
    return _converted(sink, texts) if sink.format in TOPIC_FORMATS else texts


def _converted(sink: Sink, texts: Iterable[str | None]) -> Iterator[bytes | Misfit | None]:
    """Yields the values of JSON objects in a format of another package."""
    of_json = resolve_name(TOPIC_FORMATS[sink.format].of_json or "")
    for text in texts:
        try:
            yield None if text is None else bytes(of_json(text.encode()))
        except ERRORS_OF_RECORDS as error:
            yield Misfit(f"operators.{sink.name}.format must fit its records: {described(error)} in {text}")


def _avro(sink: Sink, rows: pl.DataFrame) -> Iterator[bytes | Misfit | None]:
    schema = json.loads(sink.avro_schema or "")
    instants = {field["name"] for field in schema["fields"] if _is_instant(field["type"])}
    parsed = fastavro.parse_schema(schema)
    numbers = [c for c, kind in rows.schema.items() if kind == INSTANT and c not in instants]
    for row in rows.with_columns(pl.col(numbers).dt.epoch("ms")).iter_rows(named=True):
        if row.pop("_deleted"):
            yield None
            continue
        # A record has only the bytes of its fields, without the header of an Avro file.
        written = io.BytesIO()
        try:
            fastavro.schemaless_writer(written, parsed, {**row, **_instants(row, instants)})
        except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError) as error:
            yield Misfit(f"operators.{sink.name}.schema must fit its records: {error} in {row}")
        else:
            yield written.getvalue()


def is_schema_of_records(text: str) -> bool:
    """Returns True if *text* is an Avro schema of records.

    >>> is_schema_of_records('{"type": "record", "name": "r", "fields": []}'), is_schema_of_records('"string"')
    (True, False)
    """
    try:
        schema = json.loads(text)
        fastavro.parse_schema(schema)
    except (ValueError, TypeError, AttributeError, LookupError, SchemaParseException, UnknownType):
        return False
    return isinstance(schema, dict) and schema["type"] == "record"


def _is_instant(type_: Any) -> bool:
    """Returns True if a type of an Avro schema is a timestamp, or a union with one."""
    branches = type_ if isinstance(type_, list) else [type_]
    return any(isinstance(b, dict) and str(b.get("logicalType")).startswith("timestamp-") for b in branches)


def _instants(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, datetime]:
    """Returns the columns *names* of *row*, which are instants or epoch ms, as `datetime`; nulls are left out."""
    values = {name: row[name] for name in names if row.get(name) is not None}
    # fastavro converts a `datetime` to every unit.
    return {n: at if isinstance(at, datetime) else EPOCH + timedelta(milliseconds=at) for n, at in values.items()}
