"""Adds rows of operators whose drivers passed windows without any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property

import numpy as np
import polars as pl

from tidemark.collecting import pick
from tidemark.kernels.reports.arrays import Floats
from tidemark.reports.paths.windows.finish_rows import FINISH, RowOperator
from tidemark.reports.paths.windows.operator_places import OperatorPlace
from tidemark.reports.paths.windows.passed_windows import PassedWindows

STARTED_WITH_IT_MS = 30_000
"""Longest delay of a driver's first batch after a window, in ms.

The delay begins when the others had finished the window. A driver that began later was absent during it.
"""


class PassingRows:
    """Adds rows to those that drivers wrote.

    `last` has the last row so far of each sub-topology, whose clock an added row has.

    Args:
        passed: when drivers passed windows.
        subs: the sub-topologies of the topology as it is now.
        operators: the operators of rows, by number.
        rows: the rows of all windows.
    """

    def __init__(
        self, passed: PassedWindows, subs: Collection[str], operators: list[RowOperator], rows: pl.DataFrame
    ) -> None:
        self._passed, self._subs, self._operators, self._rows = passed, subs, operators, rows
        self._values = rows.select(FINISH).to_numpy()
        self._more: list[Floats] = []
        self.last: dict[str, int] = {}

    def values(self) -> Floats:
        """Returns FINISH of all rows, the added ones last."""
        return np.vstack([self._values, *self._more])

    def fill(
        self,
        sub: str,
        missing: Mapping[str, OperatorPlace],
        end_ms: int,
        places: dict[str, OperatorPlace],
        finished: dict[str, int],
        next_row: int,
    ) -> None:
        """Adds operators without a row to *places*.

        They are added to *finished*, too, if their driver passed the window.

        Args:
            sub: the sub-topology of the driver.
            missing: the places of its operators without a row.
            end_ms: end of the window.
            places: of the operators of the window.
            finished: the row of each operator that has finished it.
            next_row: the first row of the window after it.
        """
        missing = {name: place for name, place in missing.items() if name not in finished}
        batch = self._passed.batch(sub, end_ms)
        if self._was_away(sub, batch, finished.values()):
            return
        places |= missing
        if batch is not None:
            # An operator that closed another window in that batch has its own EWT.
            of_batch = {
                name: row for name, row in self._rows_of_batch.get((sub, batch[0]), {}).items() if row < next_row
            }
            rest = dict.fromkeys(missing, self._row_of_pass(sub, batch))
            finished |= rest | pick(of_batch, missing)

    def _row_of_pass(self, sub: str, batch: tuple[int, int, int]) -> int:
        """Adds a row for operators that passed a window in *batch*.

        Returns its number.
        """
        batch_id, began_ms, finished_ms = batch
        clock = self._values[self.last[sub]] if sub in self.last else np.full(len(FINISH), np.nan)
        row = dict(zip(FINISH, clock.tolist(), strict=True))
        skew_ms = float(np.nan_to_num(row["skew_ms"]))
        row |= {"ewt_ms": finished_ms + skew_ms, "began_ms": began_ms + skew_ms, "queued_ms": 0, "batch_id": batch_id}
        self._more.append(np.array([*row.values()], np.float64))
        return len(self._values) + len(self._more) - 1

    @cached_property
    def _rows_of_batch(self) -> dict[tuple[str, int], dict[str, int]]:
        """The first row of each operator, by sub-topology and batch."""
        by_batch: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for row, number, batch_id in self._rows.select("row", "operator_number", "batch_id").iter_rows():
            by_batch[self._operators[number].sub_topology, batch_id].setdefault(self._operators[number].name, row)
        return by_batch

    def _was_away(self, sub: str, batch: tuple[int, int, int] | None, others: Collection[int]) -> bool:
        """Returns True if the driver of *sub* was away.

        It was removed before, or began its first batch long after the others had finished the window.

        Args:
            sub: the sub-topology.
            batch: that passed the window; None: no batch has passed it.
            others: the rows of the operators that have finished the window.
        """
        if batch is None:
            return sub not in self._subs
        batch_id, began_ms, _ = batch
        if batch_id > 0 or not others:
            return False
        own = len(self._values)
        ewts_ms = [self._values[row][0] if row < own else self._more[row - own][0] for row in others]
        return bool(began_ms > max(ewts_ms) + STARTED_WITH_IT_MS)
