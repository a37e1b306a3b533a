"""The work of operators on many windows, from rows of critical_path_steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
import polars.selectors as cs

from tidemark.kernels.reports.ages import CAUSES
from tidemark.kernels.reports.arrays import NONE, UNFINISHED, Floats, Places
from tidemark.semantics.blame import AgePart

WORK = ("latency_ms", "waited_ms", "queued_ms", "worked_ms", "ewt_ms", "began_ms", "skew_ms", "batch_id")


class OperatorWork(NamedTuple):
    """The work of an operator for windows, and their batches."""

    latency_ms: Floats
    waited_ms: Floats
    queued_ms: Floats
    worked_ms: Floats
    ewt_ms: Floats
    began_ms: Floats
    skew_ms: Floats
    batch_id: Floats


@dataclass(frozen=True)
class WindowWork:
    """The work of all operators for windows.

    Attributes:
        windows: their starts and ends, in order.
        operators: names.
        parts: the parts that ages can have.
        work: WORK of each operator (a row) for each window (a column).
        slowest: the place of the slowest upstream; NONE: it has none; UNFINISHED: it did not finish the window.
        owner: the place of the operator's name, kind and sub-topology in `owners`; NONE: it did not finish the window.
        owners: the place of the operator's part, and its sub-topology.
    """

    windows: pl.DataFrame
    operators: Sequence[str]
    parts: Sequence[AgePart]
    work: OperatorWork
    slowest: Places
    owner: Places
    owners: Sequence[tuple[int, str]]


def window_work(steps: pl.DataFrame, finished: pl.DataFrame, kept: pl.DataFrame) -> WindowWork:
    """Returns the work of all operators.

    Args:
        steps: rows of critical_path_steps.
        finished: when operators had finished the windows, as in Paths.
        kept: rows of window_parts.
    """
    window = ["window_start", "window_end"]
    rows = steps.with_columns(cs.datetime().dt.epoch("ms")).join(finished, on=[*window, "operator"])
    windows = rows.select(window).unique().sort("window_end", "window_start")
    operators = rows["operator"].unique().sort().to_list()
    names = pl.DataFrame({"operator": operators}).with_row_index("place")
    owners = rows.select("operator", "kind", "sub_topology").unique().sort(pl.all())
    of_owners = [AgePart(name, kind) for name, kind, _ in owners.iter_rows()]
    parts = [
        *dict.fromkeys([*CAUSES, *of_owners, *map(AgePart._make, kept.select("operator", "kind").unique().rows())])
    ]
    upstreams = names.rename({"operator": "slowest_upstream", "place": "slowest"})
    placed = (
        rows.join(windows.with_row_index("number"), on=window)
        .join(names, on="operator")
        .join(owners.with_row_index("owner"), on=["operator", "kind", "sub_topology"])
        .join(upstreams, on="slowest_upstream", how="left")
        .with_columns(
            pl.when(pl.col("slowest_upstream").is_null())
            .then(NONE)
            .otherwise(pl.col("slowest").fill_null(UNFINISHED))
            .alias("slowest")
        )
    )
    at = placed["place"].to_numpy(), placed["number"].to_numpy()

    def spread(column: str, empty: float) -> Floats:
        values: Floats = np.full((len(operators), windows.height), empty, np.float64)
        values[at] = placed[column].cast(pl.Float64()).to_numpy()
        return values

    work = OperatorWork(*(spread(column, np.nan) for column in WORK))
    slowest, owner = (spread(column, NONE).astype(np.int64) for column in ("slowest", "owner"))
    places = {part: place for place, part in enumerate(parts)}
    of_subs = [(places[part], sub) for part, sub in zip(of_owners, owners["sub_topology"], strict=True)]
    return WindowWork(windows, operators, parts, work, slowest, owner, of_subs)
