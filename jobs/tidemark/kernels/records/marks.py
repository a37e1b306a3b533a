"""Marks of time, by which the writer of a topic or a Delta table publishes its watermark.

A mark has the watermark of its writer and whether that is idle. Marks are sent also while every update is suppressed,
so that readers know how far time has come. The text of a mark is `<writer>:<watermark>:<active|idle>`, the watermark as
epoch ms, or `-` before there is one. In a topic it is the header `tidemark-mark` of a record without key and value; in
a table it is in the `commitInfo` of a commit, under the same name. Every record after it in its partition, or table, is
newer than the watermark. Only marks of a source's single writer (`written_by`) are trusted: of several writers none
knows the others' watermarks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from tidemark.model.kinds.source import Source
from tidemark.model.tables.catalog import HOP_MARK
from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress

MARK = "tidemark-mark"
USER_METADATA = "userMetadata"
"""The field of a Delta commit that holds text of its writer; `DESCRIBE HISTORY` shows it."""
_FORM = r"^(?P<writer>.+):(?P<watermark>-|-?\d{1,16}):(?P<status>active|idle)$"
_WITHOUT_A_VALUE = ("null_value", "null_key", "missing_timestamp")


def mark_text(writer: str, watermark_ms: int | None, *, idle: bool) -> str:
    """Returns the header value of a mark of *writer*."""
    status = Activity.IDLE if idle else Activity.ACTIVE
    return f"{writer}:{'-' if watermark_ms is None else watermark_ms}:{status.value}"


class TimeMark(NamedTuple):
    """The content of a trusted mark: the writer's watermark, epoch ms or None before the first, and
    whether it is idle.
    """

    watermark_ms: int | None
    idle: bool


def mark_in(source: Source, text: str) -> TimeMark | None:
    """Returns the content of the mark *text*, or None if it is no mark, or *source* does not trust its writer."""
    mark = re.fullmatch(_FORM, text, flags=re.ASCII)
    if mark is None or mark["writer"] not in _trusted_writer(source):
        return None
    watermark_ms = None if mark["watermark"] == "-" else int(mark["watermark"])
    return TimeMark(watermark_ms, mark["status"] == Activity.IDLE.value)


class Marks(NamedTuple):
    """What the marks in a batch say about partitions with rows.

    `idle` is True for a partition that its writer declares idle. `went_back` are the partitions with a mark that the
    writer sent after its time was set back.
    """

    idle: dict[int, bool]
    went_back: frozenset[int] = frozenset()


def is_hop_update(**names: str) -> pl.Expr:
    """Returns True for a row of an upstream's table that is an update, and False for one that is a mark.

    *names* says how columns are called that have another name in the frame.


    >>> rows = {"watermark": [None, None, 7], "idle": [None, True, False]}
    >>> pl.DataFrame(rows).select(is_hop_update()).to_series().to_list()
    [True, False, False]
    """
    return pl.all_horizontal(pl.col(names.get(column, column)).is_null() for column in HOP_MARK)


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def with_marks(source: Source, rows: pl.DataFrame, before: InputProgress) -> tuple[pl.DataFrame, Marks]:
    """Turns marks among the *rows* of *source* into keep-alive records.

    The record of a mark gets the time with which its partition's watermark becomes equal to the mark's, or null if the
    mark is not trusted.

    Args:
        source: the source.
        rows: its rows.
        before: its progress before the batch.

    Returns:
        The rows, and what the marks say about their partitions.
    """
    no_marks = Marks(dict.fromkeys(rows["partition"].unique().to_list(), False))
    if rows["headers"].null_count() == rows.height:
        return rows, no_marks
    is_empty = pl.all_horizontal(
        pl.col("key").is_null(),
        pl.col("reason").is_null() | pl.col("reason").is_in(_WITHOUT_A_VALUE),
        *(pl.col(source.name).struct.field(column).is_null() for column in source.columns),
    )
    header = pl.col("headers").list.eval(
        pl.element().struct.field("value").filter(pl.element().struct.field("key") == MARK)
    )
    # Few records have the header; Polars 1 has no cast that gives null where bytes are no text.
    text = header.list.last().map_elements(_text, return_dtype=pl.String)
    marked = rows.with_columns(_mark=pl.when(is_empty).then(text))
    if not marked["_mark"].is_not_null().any():
        return rows, no_marks
    mark = pl.col("_mark").str.extract_groups(_FORM).struct
    # The inverse of `bounded_out_of_orderness`.
    at_ms = mark.field("watermark").cast(pl.Int64, strict=False) + source.bound_ms + 1
    set_back = {n: part.set_back_from_ms for n, part in before.partitions.items() if part.set_back_from_ms is not None}
    # A mark from before the time of the source was set back is not trusted.
    from_ms = pl.col("partition").replace_strict(set_back, default=None, return_dtype=pl.Int64)
    is_trusted = mark.field("writer").is_in(_trusted_writer(source)) & (from_ms.is_null() | (at_ms < from_ms))
    marked = marked.with_columns(
        _idle=(is_trusted & (mark.field("status") == Activity.IDLE.value)).fill_null(value=False),
        _at_ms=pl.when(is_trusted).then(at_ms),
    )
    # A partition is idle if its newest row is a mark with that status: a record after the mark ends it.
    newest = marked.group_by("partition", maintain_order=True).agg(pl.col("_idle").last())
    went_back = frozenset(marked.filter(pl.col("_at_ms").is_not_null())["partition"]) & {*set_back}
    is_mark = pl.col("_mark").is_not_null()
    alive = marked.with_columns(
        timestamp_ms=pl.when(is_mark).then("_at_ms").otherwise("timestamp_ms"),
        reason=pl.when(~is_mark).then("reason"),
        deleted=pl.col("deleted") & ~is_mark,
    )
    return alive.drop("_mark", "_idle", "_at_ms"), Marks(dict(newest.iter_rows()), went_back)


def _trusted_writer(source: Source) -> Sequence[str]:
    """Returns the only writer of the topic, or nothing if there are several: none of them knows the
    others' watermarks.
    """
    return source.written_by if len(source.written_by) == 1 else ()
