"""Late records that closed windows take in again on request (`tidemark requeue --late --reopen`): each of them once.

How it works: a request lies in the control folder. The batch that is decided next starts from a progress that names it,
so that a batch that is run again, or a driver that starts again, takes the same records in, and no other batch does. A
later one removes it: the journal has the batch by then, and `requeued` the records. A window can be corrected while its
states are kept; `forgotten` says up to where they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from tidemark.control import Control
from tidemark.delta import scan
from tidemark.kernels.proofs import read_again
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.operators import Windows
from tidemark.spec.tables import LATE_RECORDS
from tidemark.spec.topology import SubTopology

PLACE = {"batch_id": pl.Int64(), "partition": pl.Int32(), "offset": pl.Int64()}
"""What tells the late records of an operator apart."""


class Reopenings:
    """Reads what *control* was asked for *sub*, whose tables lie in *home*; *schemas* are those of its operators."""

    def __init__(
        self, sub: SubTopology, home: Path, control: Control, schemas: Mapping[str, Mapping[str, pl.DataType]]
    ) -> None:
        self._sub, self._home, self._control, self._schemas = sub, home, control, schemas
        self._windows = sub.windows()
        self._inputs = {operator.name: operator.inputs for operator in sub.operators}

    def applied(self, was: StreamProgress, batch_id: int) -> StreamProgress:
        """*was* with what is to be carried out by *batch_id*: all that was asked for and is not done."""
        asked = self._control.reopenings()
        done = [id_ for id_ in asked if id_ in was.reopened]
        left = {id_: was.reopened[id_] for id_ in done if not self._control.remove_reopening(id_)}
        return replace(was, reopened={**left, **dict.fromkeys(sorted({*asked} - {*done}), batch_id)})

    def records(self, was: StreamProgress, batch_id: int) -> dict[str, pl.DataFrame]:
        """By aggregate, the late records that it takes in again in *batch_id*."""
        found: dict[str, list[pl.DataFrame]] = {}
        for id_ in (id_ for id_, batch in was.reopened.items() if batch == batch_id):
            asked = self._control.reopening(id_)
            if asked.operator in self._windows:
                found.setdefault(asked.operator, []).append(pl.DataFrame(asked.late, schema=PLACE, orient="row"))
        return {name: self._late(name, pl.concat(places).unique()) for name, places in found.items()}

    def _late(self, name: str, places: pl.DataFrame) -> pl.DataFrame:
        rows = scan(self._home / LATE_RECORDS.name).filter(pl.col("operator") == name)
        rows = rows.filter(pl.col("batch_id").is_in(places["batch_id"].unique().implode()))
        late = rows.collect().join(places, on=list(PLACE), how="semi")
        in_order = late.sort("batch_id", "partition", "offset")
        return read_again(in_order, self._schemas[self._inputs[name][0]])

    def forgotten(self, was: StreamProgress, watermark_ms: int | None = None) -> dict[str, int]:
        """By aggregate, the latest end of a window whose states are gone after *was*, and at *watermark_ms* if given.

        What lay before a key `reopen_for`, or a longer one, stays forgotten.
        """
        found = forgotten(self._windows, was)
        if watermark_ms is None:
            return found
        ends = {name: windows.forgotten_up_to_ms(watermark_ms) for name, windows in self._windows.items()}
        return {name: max(end_ms, found.get(name, end_ms)) for name, end_ms in ends.items()}

    def ended(self, now: StreamProgress) -> dict[str, int]:
        """By aggregate, the latest end of a window whose states are gone as time has gone on to *now*.

        It does not go back where `allowed_lateness` or `reopen_for` was made longer.
        """
        if now.watermark_ms is None:
            return {**now.ended}
        ends = {name: windows.forgotten_up_to_ms(now.watermark_ms) for name, windows in self._windows.items()}
        return {name: max(end_ms, now.ended.get(name, end_ms)) for name, end_ms in ends.items()}


def forgotten(of: Mapping[str, Windows], was: StreamProgress) -> dict[str, int]:
    """By aggregate, which has the windows *of* its name, the latest end of a window whose states are gone after *was*.

    An older version kept no state of a closed window. One whose windows are all open is left out.
    """
    if was.watermark_ms is None:
        return {name: was.forgotten[name] for name in of if name in was.forgotten}
    return {name: was.forgotten.get(name, windows.closed_up_to_ms(was.watermark_ms)) for name, windows in of.items()}
