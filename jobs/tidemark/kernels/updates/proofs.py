"""Turns judged updates, their proofs, and records that do not go on into table rows."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from tidemark.kernels import META, payload
from tidemark.kernels.columns.values import parsed, value_text
from tidemark.kernels.updates.emission import JudgedUpdates
from tidemark.selection import omit, within
from tidemark.semantics.dead_letters import DeadLetterKind


def changes_rows(operator: str, result: JudgedUpdates, **more: str) -> pl.DataFrame:
    """Returns emitted updates as rows of `changes`, with *more* columns."""
    return result.emitted.select(
        seq=pl.int_range(pl.len(), dtype=pl.Int64),
        operator=pl.lit(operator),
        key="_key",
        value="_value",
        timestamp="_timestamp_ms",
        old_timestamp="_old_timestamp_ms",
        value_hash="_identity",
        source_partition="_partition",
        source_offset="_offset",
        **more,
    )


def suppressed_rows(operator: str, result: JudgedUpdates) -> pl.DataFrame:
    """Returns suppressed runs as rows of `suppressed`; those of joined tables have all their times."""
    rows = result.suppressed
    return rows.select(
        *within(("asserted_ms",), rows.columns),
        "n",
        "first_offset",
        "last_offset",
        "max_timestamp",
        operator=pl.lit(operator),
        key="_key",
        source_partition="_partition",
        old_timestamp="_old_timestamp_ms",
        value_hash="_identity",
    )


def as_read(records: pl.DataFrame) -> pl.DataFrame:
    """Returns *records* as rows of a source, by partition and offset; their bytes are their columns as JSON."""
    return records.select(
        partition="_partition",
        offset="_offset",
        timestamp_ms="_timestamp_ms",
        value=value_text(payload(records.columns), records.schema).cast(pl.Binary),
        key=pl.col("_key").cast(pl.Binary),
    )


def as_late(records: pl.DataFrame) -> pl.DataFrame:
    """Returns *records* as `as_read` does, with all that `read_again` needs."""
    return as_read(records).with_columns(records["_task"].alias("task"), records["_headers"].alias("headers"))


def read_again(late: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Returns the records of *late*, rows that `as_late` wrote."""
    columns = omit(schema, META)
    # The time until the records came in again is no latency of the stream.
    records = late.with_columns(pl.col("value").cast(pl.String)).select(
        parsed("value", columns).struct.unnest(),
        _key=pl.col("key").cast(pl.String),
        _timestamp_ms=pl.col("timestamp").dt.epoch("ms"),
        _partition="partition",
        _offset="offset",
        _task="task",
        _deleted=pl.lit(value=False),
        _headers="headers",
        _newest_ms=pl.col("timestamp").dt.epoch("ms"),
        _repeated=pl.lit(value=True),
        _read=pl.lit(None, pl.Int64),
    )
    return records.select(pl.col(name).cast(kind) for name, kind in schema.items())


def quarantine_rows(operator: str, records: pl.DataFrame, reason: str, detail: pl.Expr | None = None) -> pl.DataFrame:
    """Returns *records* that *operator* cannot use, as rows of `dead_letters`.

    Args:
        operator: the operator.
        records: the records; a row has their partition, their offset and their columns.
        reason: why they are quarantined, a word such as `invalid_key`.
        detail: what exactly is wrong with each; None without details.
    """
    columns = [c for c in payload(records.columns) if not c.startswith("@")]
    return records.select(
        kind=pl.lit(DeadLetterKind.QUARANTINED.value),
        operator=pl.lit(operator),
        partition="_partition",
        offset="_offset",
        reason=pl.lit(reason),
        detail=pl.lit(None, pl.String) if detail is None else detail,
        value=value_text(columns, records.schema).cast(pl.Binary),
    )


def late_rows(operator: str, late: pl.DataFrame, watermark_ms: int | None, blocked_by: str | None) -> pl.DataFrame:
    """Returns the *late* records of *operator*, as rows of `dead_letters`.

    Args:
        operator: the operator that had closed their window.
        late: the records.
        watermark_ms: the watermark behind which they are.
        blocked_by: the input that held that watermark back, and so decided how late it was; None if none did.
    """
    watermark = pl.lit(watermark_ms, pl.Int64)
    return late.select(
        *within(("task", "headers"), late.columns),
        "partition",
        "offset",
        "key",
        "value",
        kind=pl.lit(DeadLetterKind.LATE.value),
        operator=pl.lit(operator),
        timestamp="timestamp_ms",
        watermark=watermark,
        lateness_ms=watermark - pl.col("timestamp_ms"),
        blocked_by=pl.lit(blocked_by, pl.String),
    )
