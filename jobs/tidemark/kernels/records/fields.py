"""The fields of a source's records, for every format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

INVALID_UTF8, WRONG_TYPE = "invalid_utf8", "wrong_type"
MALFORMED_JSON, MALFORMED_AVRO, MALFORMED_PROTOBUF = "malformed_json", "malformed_avro", "malformed_protobuf"


@dataclass(frozen=True)
class Fields:
    """A column for each declared field, and one for all others.

    `others` is a JSON object (null without any). `reasons` says why a record cannot be read, null where it can; such a
    record has no fields. `details` explains reasons, if the format has an explanation.
    """

    columns: Mapping[str, pl.Series]
    others: pl.Series
    reasons: pl.Series
    details: pl.Series | None = None


class RecordUnreadable(Exception):
    """Raised for an unreadable record, with the reason, and the explanation if there is one."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def texts_of(values: pl.Series) -> pl.Series:
    """Returns bytes as text; null where they are not UTF-8."""
    try:
        return values.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series([_text_of(value) for value in values], dtype=pl.String)


def texts_at(texts: Mapping[int, str | None], rows: int) -> pl.Series:
    """Returns a column of so many *rows*, with *texts* by row.

    It is null elsewhere.
    """
    none = pl.Series([None], dtype=pl.String).new_from_index(0, rows)
    return none.scatter([*texts], pl.Series([*texts.values()], dtype=pl.String)) if texts else none


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
