"""Marks of time in a topic or a Delta table: watermark and status of its writer while every update is suppressed.

A mark has the text `<writer>:<watermark>:<active|idle>`, the watermark as epoch ms, or `-` before there is one. In a
topic it is the header `tidemark-mark` of a record without key and value; in a table it is in the `commitInfo` of a
commit, under the same name. Every record after it in its partition, or table, is newer than the watermark. Only
marks of a source's single writer (`written_by`) are trusted; of several writers none knows the others' watermarks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from tidemark.semantics.idleness import Activity
from tidemark.semantics.progress import InputProgress
from tidemark.spec.operators import Source
from tidemark.spec.tables import HOP_MARK

MARK = "tidemark-mark"
_FORM = r"^(?P<writer>.+):(?P<watermark>-|-?\d{1,16}):(?P<status>active|idle)$"
_WITHOUT_A_VALUE = ("null_value", "null_key", "missing_timestamp")


def mark_text(writer: str, watermark_ms: int | None, *, idle: bool) -> str:
    """The value of the header of a mark of *writer*."""
    status = Activity.IDLE if idle else Activity.ACTIVE
    return f"{writer}:{'-' if watermark_ms is None else watermark_ms}:{status.value}"


class Told(NamedTuple):
    """What a trusted mark says: a watermark, epoch ms (None before there is one), and whether the writer is idle."""

    watermark_ms: int | None
    idle: bool


def told_by(source: Source, text: str) -> Told | None:
    """What the mark *text* says to *source*; None if it is not a mark, or its writer is not trusted."""
    found = re.fullmatch(_FORM, text, flags=re.ASCII)
    if found is None or found["writer"] not in _believed(source):
        return None
    watermark_ms = None if found["watermark"] == "-" else int(found["watermark"])
    return Told(watermark_ms, found["status"] == Activity.IDLE.value)


class Marks(NamedTuple):
    """Of each partition with rows whether it is `idle`, and those whose writer `went_back` in time."""

    idle: dict[int, bool]
    went_back: frozenset[int] = frozenset()


def is_hop_update(**names: str) -> pl.Expr:
    """Whether a row of a hop is an update, and no mark of time; *names* are those of columns that are called otherwise.

    >>> rows = {"watermark": [None, None, 7], "idle": [None, True, False]}
    >>> pl.DataFrame(rows).select(is_hop_update()).to_series().to_list()
    [True, False, False]
    """
    return pl.all_horizontal(pl.col(names.get(column, column)).is_null() for column in HOP_MARK)


def with_marks(source: Source, rows: pl.DataFrame, was: InputProgress) -> tuple[pl.DataFrame, Marks]:
    """The *rows* of *source*, whose marks are keep-alive records now, and what these say; *was*: before the batch.

    The time of such a record is the one that makes the watermark of its partition that of the mark; of a mark that is
    not believed it is null. A partition is idle whose newest row is a mark that says so. A mark from before the time of
    the source was set back is not believed.
    """
    nothing = pl.all_horizontal(
        pl.col("key").is_null(),
        pl.col("reason").is_null() | pl.col("reason").is_in(_WITHOUT_A_VALUE),
        *(pl.col(source.name).struct.field(column).is_null() for column in source.columns),
    )
    header = pl.col("headers").list.eval(
        pl.element().struct.field("value").filter(pl.element().struct.field("key") == MARK)
    )
    text = header.list.last().cast(pl.String, strict=False)
    found = rows.with_columns(_mark=pl.when(nothing).then(text))
    if not found["_mark"].is_not_null().any():
        return rows, Marks(dict.fromkeys(rows["partition"].unique().to_list(), False))
    told = pl.col("_mark").str.extract_groups(_FORM).struct
    at_ms = told.field("watermark").cast(pl.Int64, strict=False) + source.bound_ms + 1
    set_back = {n: part.set_back_from_ms for n, part in was.partitions.items() if part.set_back_from_ms is not None}
    from_ms = pl.col("partition").replace_strict(set_back, default=None, return_dtype=pl.Int64)
    believed = told.field("writer").is_in(_believed(source)) & (from_ms.is_null() | (at_ms < from_ms))
    found = found.with_columns(
        _idle=(believed & (told.field("status") == Activity.IDLE.value)).fill_null(value=False),
        _at_ms=pl.when(believed).then(at_ms),
    )
    newest = found.group_by("partition", maintain_order=True).agg(pl.col("_idle").last())
    went_back = frozenset(found.filter(pl.col("_at_ms").is_not_null())["partition"]) & {*set_back}
    is_mark = pl.col("_mark").is_not_null()
    alive = found.with_columns(
        timestamp_ms=pl.when(is_mark).then("_at_ms").otherwise("timestamp_ms"),
        reason=pl.when(~is_mark).then("reason"),
        deleted=pl.col("deleted") & ~is_mark,
    )
    return alive.drop("_mark", "_idle", "_at_ms"), Marks(dict(newest.iter_rows()), went_back)


def _believed(source: Source) -> Sequence[str]:
    return source.written_by if len(source.written_by) == 1 else ()
