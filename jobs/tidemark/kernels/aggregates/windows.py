"""Finds the windows of whole columns of timestamps; see `tidemark.semantics.windows`.

Epoch ms of record time, half-open.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

import polars as pl

from tidemark.model.settings.windows import Windows
from tidemark.semantics.windows import instant_of, latest_shown_ms

HOUR_MS = 3_600_000
WINDOW: dict[str, pl.DataType] = {"window_start": pl.Int64(), "window_end": pl.Int64()}
"""The columns with the window of a row."""


def window_start(timestamp_ms: pl.Expr, *, size_ms: int, offset_ms: int = 0) -> pl.Expr:
    """Returns the start, epoch ms, of each timestamp's tumbling window.

    Windows are aligned to the epoch plus *offset_ms*.
    """
    return (timestamp_ms - offset_ms).floordiv(size_ms) * size_ms + offset_ms


def in_windows(records: pl.DataFrame, windows: Windows) -> pl.DataFrame:
    """Returns *records* once for each tumbling or hopping window they are in.

    The earliest comes first; rows have WINDOW.
    """
    if windows.timezone is None:
        return _in_windows(records.with_columns(_shown="_timestamp_ms"), windows)
    # A window of a time zone is found by what its clock shows, and then turned back into instants.
    zone = ZoneInfo(windows.timezone)
    rows = _in_windows(records.with_columns(_latest_shown(records["_timestamp_ms"], zone)), windows)
    return rows.with_columns(_instants(rows[name], zone) for name in WINDOW)


def _in_windows(records: pl.DataFrame, windows: Windows) -> pl.DataFrame:
    """Returns the windows by `_shown`, what the clock of the windows shows."""
    # Boundaries of windows are times of their own clock, which may skip or repeat an hour.
    latest = window_start(pl.col("_shown"), size_ms=windows.hop_ms, offset_ms=windows.offset_ms)
    # A time is in at most ⌈size / hop⌉ windows.
    before = pl.int_range(0, -(-windows.size_ms // windows.hop_ms), eager=True).reverse() * windows.hop_ms
    starts = records.with_columns(_latest=latest).join(
        pl.DataFrame({"_before": before}), how="cross", maintain_order="left"
    )
    return (
        starts.with_columns(window_start=pl.col("_latest") - pl.col("_before"))
        .with_columns(window_end=pl.col("window_start") + windows.size_ms)
        .filter(pl.col("window_end") > pl.col("_shown"))
        .drop("_latest", "_before", "_shown")
    )


def _latest_shown(at_ms: pl.Series, zone: ZoneInfo) -> pl.Series:
    """Returns `semantics.windows.latest_shown_ms` of each instant, as `_shown`."""
    clock = pl.from_epoch(at_ms, time_unit="ms").dt.replace_time_zone("UTC").dt.convert_time_zone(zone.key)
    local = clock.dt.replace_time_zone(None)
    first_pass = local.dt.replace_time_zone(zone.key, ambiguous="earliest").dt.epoch("ms")
    rows = pl.DataFrame({"at_ms": at_ms, "_shown": local.dt.epoch("ms"), "again": first_pass < at_ms})
    # A clock is put back at most once an hour, so the latest time it showed is the same for the rest of that hour.
    hour = pl.col("at_ms") // HOUR_MS
    again = rows.filter("again").group_by(hour=hour).agg(pl.col("at_ms").max())
    latest = {hour: latest_shown_ms(at, zone) for hour, at in again.rows()}
    shown_before = hour.replace_strict(latest, default=None, return_dtype=pl.Int64)
    return rows.select(pl.when("again").then(shown_before).otherwise("_shown").alias("_shown")).to_series()


def _instants(shown_ms: pl.Series, zone: ZoneInfo) -> pl.Series:
    """Returns `semantics.windows.instant_of` of each."""
    local = pl.from_epoch(shown_ms, time_unit="ms")
    at_ms = local.dt.replace_time_zone(zone.key, ambiguous="earliest", non_existent="null").dt.epoch("ms")
    left_out = {shown: instant_of(shown, zone) for shown in shown_ms.filter(at_ms.is_null()).unique()}
    if not left_out:
        return at_ms.alias(shown_ms.name)
    return at_ms.fill_null(shown_ms.replace_strict(left_out, default=None, return_dtype=pl.Int64)).alias(shown_ms.name)


def ends_by(end_ms: int | None) -> pl.Expr:
    """Returns True for rows whose window ends by *end_ms*; if that is None, no window does."""
    return pl.lit(value=False) if end_ms is None else pl.col("window_end") <= end_ms


def is_closed(windows: Windows, watermark_ms: int | None) -> pl.Expr:
    """Returns True for a row whose window takes no more records.

    The rule is `semantics.watermark.is_window_late`.
    """
    return ends_by(None if watermark_ms is None else windows.closed_up_to_ms(watermark_ms))
