"""Formats rows: aligned for people, CSV and JSON for programs.

Instants are ISO 8601 in UTC with milliseconds.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from tidemark.safe_text import inert, one_line

Row = Sequence[Any]


def format_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Formats a heading, then a line per row.

    Numbers are aligned at their ends, and null is shown as `null`.

    >>> print(format_table(["operator", "n"], [["weather", 1234], ["sink", None]]))
    operator      n
    weather   1,234
    sink       null
    """
    lines = [list(map(one_line, columns))]
    lines += [list(map(_cell_text, row)) for row in rows]
    right = [any(map(_is_number, column)) for column in zip(*rows, strict=True)] or [False] * len(columns)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths, right) for line in lines)


def as_csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Formats CSV with a heading; null is an empty field."""
    lines = [_csv_line(columns)]
    for row in rows:
        lines.append(_csv_line(["" if value is None else _text(value) for value in row]))
    return "\n".join(lines)


def as_json(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Formats a JSON array of one object per row."""
    return as_document([dict(zip(columns, row, strict=True)) for row in rows])


def as_document(value: Any) -> str:
    """Formats *value*, of dicts, lists and values of cells, as JSON."""
    return inert(json.dumps(value, default=_text, ensure_ascii=False, indent=1))


FORMATS: Mapping[str, Callable[[Sequence[str], Sequence[Row]], str]] = MappingProxyType(
    {"table": format_table, "csv": as_csv, "json": as_json}
)


def _csv_line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    # The writer quotes cells with characters of its line terminator, so this one makes it quote both.
    csv.writer(line, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n")


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def _is_number(value: Any) -> bool:
    # A bool is an int for Python.
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _cell_text(value: Any) -> str:
    if isinstance(value, float):
        # A small share has three digits, too, so that 6 of 6,860 and 10 of 6,860 differ.
        shown = f"{Decimal(f'{value:.3g}'):f}" if 0 < abs(value) < 0.1 else f"{value:,.3f}"
        return shown.rstrip("0").rstrip(".") if "." in shown else shown
    return f"{value:,}" if _is_number(value) else one_line(_text(value))


def _text(value: Any) -> str:
    match value:
        case None:
            return "null"
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", errors="backslashreplace")
        case list() | dict():
            return json.dumps(value, default=_text, ensure_ascii=False)
        case _:
            return str(value)
