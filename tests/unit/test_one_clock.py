"""Instants of several hosts on one clock."""

from __future__ import annotations

import polars as pl

from tidemark.kernels.columns.clocks import on_one_clock

SCHEMA = {
    "window_start": pl.Int64, "window_end": pl.Int64, "host": pl.String, "ewt_adjusted_at": pl.Int64,
    "skew_ms": pl.Int64, "skew_error_ms": pl.Int64,
}  # fmt: skip


def told(*rows: tuple[str | None, int, int | None, int | None]) -> list[tuple[int | None, ...]]:
    """Returns the adjusted rows of one window.

    Host, adjusted instant, offset and its error.
    """
    found = on_one_clock(pl.DataFrame([(0, 5, *row) for row in rows], schema=SCHEMA, orient="row"))
    return found.select("ewt_adjusted_at", "skew_ms", "skew_error_ms").rows()


def test_known_offsets_are_applied() -> None:
    assert told(("a", 110, 10, 2), ("b", 95, -5, 3)) == [(110, 10, 2), (95, -5, 3)]


def test_an_offset_known_at_one_end_alone_is_not_applied() -> None:
    assert told(("a", 110, 10, 2), ("b", 100, None, None)) == [(100, None, None), (100, None, None)]
    assert told((None, 100, None, None), ("b", 110, 10, 1)) == [(100, None, None), (100, None, None)]


def test_a_host_has_one_offset_the_surest() -> None:
    assert told(("a", 110, 10, 5), ("a", 107, 7, 2)) == [(107, 7, 2), (107, 7, 2)]
    assert told(("a", 110, 10, 5), ("a", 100, None, None)) == [(110, 10, 5), (110, 10, 5)]
