"""The fields of a source's records, for every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

INVALID_UTF8, WRONG_TYPE = "invalid_utf8", "wrong_type"
MALFORMED_JSON, MALFORMED_AVRO, MALFORMED_PROTOBUF = "malformed_json", "malformed_avro", "malformed_protobuf"
BEYOND_LIMIT = "beyond_limit"
"""Reason of quarantine: the record exceeds a limit of its source, whose key the detail names."""
ERRORS_OF_RECORDS = (Exception, pl.exceptions.PanicException)
"""What libraries raise over a record. A panic of polars is no `Exception` of Python."""
_LONGEST_DETAIL = 300


@dataclass(frozen=True)
class RecordFields:
    """The fields of records, as columns.

    Attributes:
        columns: a column for each declared field.
        others: all other fields as a JSON object; null without any.
        reasons: why a record cannot be read, so that it has no fields; null where it can.
        details: what exactly is wrong, such as the error of the library that could not read the record.
    """

    columns: Mapping[str, pl.Series]
    others: pl.Series
    reasons: pl.Series
    details: pl.Series


class RecordUnreadable(Exception):
    """Raised for an unreadable record, with the *reason* of its quarantine and a *detail*."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail

    @classmethod
    def by(cls, error: BaseException, reason: str) -> RecordUnreadable:
        """Returns *error* as a RecordUnreadable for *reason*, unless it is one already."""
        return error if isinstance(error, RecordUnreadable) else cls(reason, described(error))

    @classmethod
    def beyond(cls, *, key: str, limit: int, found: str) -> RecordUnreadable:
        """Returns the refusal of a record in which the source's limit *key* is exceeded, as *found* says."""
        return cls(BEYOND_LIMIT, f"{key} = {limit}: {found}")


def described(error: BaseException) -> str:
    """Returns type and text of *error*, as the detail of a quarantined record."""
    # The text may quote the record, with half characters that no table can keep.
    text = f"{type(error).__name__}: {error}".removesuffix(": ")[:_LONGEST_DETAIL]
    return text.encode(errors="backslashreplace").decode()


def value_at(record: Any, names: Sequence[str]) -> Any:
    """Returns the value at the path *names* in the object *record*, or None if an object on the path lacks the next
    name.

    Raises:
        RecordUnreadable: a value on the path is no object.
    """
    for name in names:
        if record is None:
            return None
        if not isinstance(record, dict):
            raise RecordUnreadable(WRONG_TYPE, f"{name} is to be in an object, and is in a {type(record).__name__}")
        record = record.get(name)
    return record


def column_of(values: Sequence[Any], kind: pl.DataType, refused: dict[int, RecordUnreadable]) -> pl.Series:
    """Returns *values* as a column of the type *kind*.

    Where a value does not fit, it is null, and its row is added to *refused*.
    """
    try:
        return pl.Series(values, dtype=kind)
    except ERRORS_OF_RECORDS:
        fitting: list[Any] = []
        for row, value in enumerate(values):
            try:
                fitting.append(pl.Series([value], dtype=kind)[0])
            except ERRORS_OF_RECORDS as error:
                fitting.append(None)
                refused[row] = RecordUnreadable.by(error, WRONG_TYPE)
        return pl.Series(fitting, dtype=kind)


def read_fields(
    columns: Mapping[str, pl.Series], others: pl.Series, refused: Mapping[int, RecordUnreadable]
) -> RecordFields:
    """Returns the *columns* and *others* of records, without those of the rows *refused*."""
    n = len(others)
    return also_refused(RecordFields(columns, others, texts_at({}, n), texts_at({}, n)), refused)


def also_refused(fields: RecordFields, refused: Mapping[int, RecordUnreadable]) -> RecordFields:
    """Returns *fields* without those of the rows *refused*."""
    if not refused:
        return fields
    rows = [*refused]
    kept: dict[str, pl.Series] = {}
    for path, column in fields.columns.items():
        kept[path] = column.scatter(rows, pl.Series([None], dtype=column.dtype))
    reasons, details = fields.reasons.to_list(), fields.details.to_list()
    for row, error in refused.items():
        reasons[row], details[row] = error.reason, error.detail
    texts = (pl.Series(each, dtype=pl.String) for each in (reasons, details))
    return RecordFields(kept, fields.others.scatter(rows, None), *texts)


def texts_of(values: pl.Series) -> pl.Series:
    """Returns bytes as text; null where they are not UTF-8."""
    try:
        return values.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series([_text_of(value) for value in values], dtype=pl.String)


def texts_at(texts: Mapping[int, str | None], rows: int) -> pl.Series:
    """Returns a column of so many *rows*, with *texts* by the number of a row, and null elsewhere."""
    none = pl.Series([None], dtype=pl.String).new_from_index(0, rows)
    return none.scatter([*texts], pl.Series([*texts.values()], dtype=pl.String)) if texts else none


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
