"""Has Spark count the latencies of a query whose code stays as it is, by `DataFrame.observe()`.

Spark calculates the aggregates of an observation in the same pass in which a query hands its rows to the sink, and
reports them with the progress of the batch. `tidemark.api.observed` reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import DataType, StructType, TimestampType

from tidemark.api.observed import OBSERVATION, lengths_ms, over_name
from tidemark.api.progress import EARLIEST_MS, LATEST_MS

log = logging.getLogger("tidemark.api")

_TRIGGERS = ("ProcessingTimeTrigger", "OneTimeTrigger", "AvailableNowTrigger")
"""Triggers of micro-batches. With the others Spark refuses plans that observe."""
_STATIC_OR_FINAL = 0x0008 | 0x0010  # java.lang.reflect.Modifier


def start_observed(
    start: Callable[[], StreamingQuery],
    writer: DataStreamWriter,
    columns: Sequence[str],
    limits_ms: Sequence[int],
    *,
    name: str,
) -> StreamingQuery:
    """Starts the query of *writer* by *start*, observed if its plan allows that; else it starts as it is.

    Args:
        start: starts the query of *writer*.
        writer: it is to be observed.
        columns: the first of these that the rows have as a TIMESTAMP is their event time.
        limits_ms: the limits to count, ms.
        name: the query, for the log.
    """
    as_written = writer._jwrite
    try:
        _refuse_other_triggers(as_written)
        column = _event_column(writer._df, columns)
        writer._jwrite = _with_rows(_observed(writer._df, column, limits_ms), as_written)
    except Exception as error:  # such as a Spark of another form
        log.warning("query %s is not observed: %s", name, _in_a_line(error))
        return start()
    try:
        query = start()
    except AnalysisException as error:  # before the query ran
        log.warning("query %s is not observed, because Spark does not start it so: %s", name, _in_a_line(error))
        writer._jwrite = as_written
        return start()
    log.info("query %s is observed by its column %s", name, column)
    return query


def _observed(rows: DataFrame, column: str, limits_ms: Sequence[int]) -> DataFrame:
    # The instant of a batch is the same for all of its rows, but counts as not deterministic when Spark analyzes the
    # plan of a batch, long after the start. A Spark that refuses such aggregates (3.5.0) refuses these now.
    rows.observe(OBSERVATION, *_metrics(column, limits_ms, F.rand().cast("timestamp")))
    return rows.observe(OBSERVATION, *_metrics(column, limits_ms, F.current_timestamp()))


def _event_column(rows: DataFrame, columns: Sequence[str]) -> str:
    for column in columns:
        if isinstance(_type_of(column, rows.schema), TimestampType):
            return column
    msg = f"it writes no column {' or '.join(columns)} of type TIMESTAMP, but {', '.join(rows.columns)}"
    raise LookupError(msg)


def _type_of(column: str, row: StructType) -> DataType | None:
    """Returns the type of *column*, which may be a field such as `window.end`; None if no or several columns fit."""
    kind: DataType = row
    for name in column.split("."):
        fields = kind.fields if isinstance(kind, StructType) else []
        named = [field for field in fields if field.name.lower() == name.lower()]
        if len(named) != 1:
            return None
        kind = named[0].dataType
    return kind


def _refuse_other_triggers(jwriter: Any) -> None:
    trigger = jwriter.getClass().getDeclaredField("trigger")
    trigger.setAccessible(True)
    name = trigger.get(jwriter).getClass().getSimpleName().rstrip("$")
    if name not in _TRIGGERS:
        msg = f"Spark does not observe with a {name}"
        raise LookupError(msg)


def _metrics(column: str, limits_ms: Iterable[int], began_at: Column) -> list[Column]:
    """Returns the aggregates that `Observed` reads, with *began_at* as the instant of the batch.

    None of them can raise an error, as a sum beyond 64 bits would. Most are counts, so these compare plain numbers.
    """
    at_us, began_us = F.unix_micros(F.col(column)), F.unix_micros(began_at)
    time_ms, began_ms = F.unix_millis(F.col(column)), F.unix_millis(began_at)
    credible_ms = F.when((time_ms >= EARLIEST_MS) & (time_ms < LATEST_MS), time_ms)
    counts = (
        F.count_if(at_us < began_us - 1_000 * (limit_ms - took_ms)).alias(over_name(limit_ms, took_ms))
        for limit_ms in sorted({*limits_ms})
        for took_ms in lengths_ms(limit_ms)
    )
    return [
        F.count(credible_ms).alias("n"),
        F.min(credible_ms).alias("oldest_ms"),
        F.max(credible_ms).alias("newest_ms"),
        F.try_sum(began_ms - credible_ms).alias("sum_ms"),
        F.max(began_ms).alias("began_ms"),
        F.count_if(at_us < 1_000 * EARLIEST_MS).alias("too_early_n"),
        *counts,
    ]


def _with_rows(rows: DataFrame, as_written: Any) -> Any:
    """Returns a writer of the JVM for *rows* that was told all that *as_written* was told."""
    jwriter = rows._jdf.writeStream()
    # Of Spark's writer only the rows are final.
    for field in as_written.getClass().getDeclaredFields():
        if not field.getModifiers() & _STATIC_OR_FINAL:
            field.setAccessible(True)
            field.set(jwriter, field.get(as_written))
    return jwriter


def _in_a_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
