"""Judges streaming windows by the promises of their operators.

Instants are epoch ms, lengths ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import polars as pl

from tidemark.kernels.columns.buckets import in_rows
from tidemark.reports.promises import Promises, WindowVerdict
from tidemark.selection import present

RecordVerdicts = Mapping[tuple[str, int], tuple[WindowVerdict, ...]]
"""The verdicts on the records of windows.

Keys are the operator and the start of the window, epoch ms.
"""
WINDOW = ["window_start", "window_end"]
_VERDICTS = pl.List(
    pl.Struct(
        {
            "sla": pl.String(),
            "operator": pl.String(),
            "quantile": pl.Float64(),
            "limit_ms": pl.Int64(),
            "value_ms": pl.Float64(),
            "broken": pl.Boolean(),
        }
    )
)


def judge_records(minutes: pl.DataFrame, promises: Promises) -> RecordVerdicts:
    """Returns the verdicts on the records of windows, by operator and start of window.

    *minutes* are rows of `latency_minutes`.
    """
    start_ms = pl.col("window_start").dt.epoch("ms")
    lists = minutes.lazy().select("operator", "buckets", "min_ms", "max_ms", start_ms=start_ms)
    extremes = pl.min("min_ms"), pl.max("max_ms")
    counted = in_rows(lists).group_by("operator", "start_ms").agg("bucket", "n", *extremes).collect()
    judged: dict[tuple[str, int], tuple[WindowVerdict, ...]] = {}
    for operator, start_ms, bucket, n, min_ms, max_ms in counted.iter_rows():
        counts = list(zip(bucket, n, strict=True))
        verdicts = (
            promise.judge_records(operator, counts, min_ms=min_ms, max_ms=max_ms)
            for promise in promises.records[operator]
        )
        judged[operator, start_ms] = tuple(present(verdicts))
    return judged


def verdicts_of(
    operator: str, start_ms: int, worked_ms: float | None, judged: RecordVerdicts, promises: Promises
) -> list[WindowVerdict]:
    """Returns the verdicts on a window by the promises of *operator*.

    Args:
        operator: its name.
        start_ms: start of the window.
        worked_ms: how long the operator worked on the window, None if that is not known.
        judged: the verdicts on the records of windows.
        promises: about the windows.
    """
    verdicts = [*judged.get((operator, start_ms), ())]
    if worked_ms is not None:
        verdicts += [promise.judge(operator, worked_ms) for promise in promises.work.get(operator, ())]
    return verdicts


def with_window_verdicts(
    paths: pl.DataFrame, steps: pl.DataFrame, judged: RecordVerdicts, promises: Promises
) -> pl.DataFrame:
    """Returns *paths* with `over_sla` and `verdicts`.

    A window is over its SLA if it broke one of any of its operators. *paths* are rows of critical_paths, and *steps*
    those of critical_path_steps.
    """
    by_window: dict[tuple[int, int], list[WindowVerdict]] = {}
    of_operators = steps.filter(pl.col("operator").is_in(promises.operators))
    rows = of_operators.select(*(pl.col(name).dt.epoch("ms") for name in WINDOW), "operator", "worked_ms")
    for start_ms, end_ms, operator, worked_ms in rows.iter_rows():
        verdicts = verdicts_of(operator, start_ms, worked_ms, judged, promises)
        by_window.setdefault((start_ms, end_ms), []).extend(verdicts)
    over: list[bool | None] = []
    listed: list[list[dict[str, object]] | None] = []
    windows = paths.select(*(pl.col(name).dt.epoch("ms") for name in WINDOW), "latency_ms")
    for start_ms, end_ms, latency_ms in windows.iter_rows():
        found = by_window.get((start_ms, end_ms))
        # An open window has no latency and no verdict; nor has one without a promise.
        is_judged = found is not None and latency_ms is not None
        over.append(any(verdict.broken for verdict in found) if found is not None and is_judged else None)
        listed.append([asdict(verdict) for verdict in sorted(found, key=_severity)] if found and is_judged else None)
    return paths.with_columns(
        over_sla=pl.Series(over, dtype=pl.Boolean()), verdicts=pl.Series(listed, dtype=_VERDICTS)
    ).select(paths.columns)


def _severity(verdict: WindowVerdict) -> tuple[bool, float, str]:
    """Orders verdicts: broken promises first, then by how near to its limit the value is."""
    return not verdict.broken, -verdict.value_ms / verdict.limit_ms, verdict.sla
