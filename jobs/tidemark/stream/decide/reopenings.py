"""Lets closed windows accept late records again on request.

The request is `tidemark requeue --late --reopen`; each record is accepted once.

How it works: the command puts a request into the control folder. The next batch carries it out: it reads the late
records again, and its progress notes the request with the number of the batch. If the batch is decided again after a
crash, it reads the same records, and no other batch does. A later batch removes the request, once the journal has the
entry of the batch that read them. A window can be corrected as long as its states are kept; `forgotten` says up to
which end of a window they are removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from tidemark.control.folder import Control
from tidemark.kernels.updates.proofs import read_again
from tidemark.model.settings.windows import Windows
from tidemark.model.tables.catalog import DEAD_LETTERS
from tidemark.model.topology import SubTopology
from tidemark.selection import within
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.semantics.progress import StreamProgress
from tidemark.stream.journal.unflushed import scan_facts

LATE_ID = {"batch_id": pl.Int64(), "partition": pl.Int32(), "offset": pl.Int64()}
"""The columns that identify a late record of an operator."""


class Reopenings:
    """Reads the requests in the folder *control* to accept late records of *sub* again.

    The tables of *sub* are in *home*; *schemas* are the columns of its operators.
    """

    def __init__(
        self, sub: SubTopology, home: Path, control: Control, schemas: Mapping[str, Mapping[str, pl.DataType]]
    ) -> None:
        self._sub, self._home, self._control, self._schemas = sub, home, control, schemas
        self._windows = sub.windows()
        self._inputs = {operator.name: operator.inputs for operator in sub.operators}

    def applied(self, was: StreamProgress, batch_id: int) -> StreamProgress:
        """Returns the progress *was* with all requests that are not done yet: *batch_id* is to carry them out."""
        # A request is removed only after the entry of its batch is durable, which is in the next batch.
        request_ids = self._control.reopenings()
        done = within(request_ids, was.reopened)
        # A request that could not be removed stays noted, so that it is not carried out twice.
        unremoved = {id_: was.reopened[id_] for id_ in done if not self._control.remove_reopening(id_)}
        return replace(was, reopened={**unremoved, **dict.fromkeys(sorted({*request_ids} - {*done}), batch_id)})

    def records(self, was: StreamProgress, batch_id: int) -> dict[str, pl.DataFrame]:
        """Returns the late records that *batch_id* accepts again, by aggregate."""
        ids_of_aggregates: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for id_, batch in was.reopened.items():
            reopening = self._control.reopening(id_) if batch == batch_id else None
            # The aggregate may be gone from the topology since the request was made.
            if reopening is not None and reopening.operator in self._windows:
                ids = pl.DataFrame(reopening.late, schema=LATE_ID, orient="row")
                ids_of_aggregates[reopening.operator].append(ids)
        return {name: self._late(name, pl.concat(ids).unique()) for name, ids in ids_of_aggregates.items()}

    def _late(self, name: str, ids: pl.DataFrame) -> pl.DataFrame:
        is_late = pl.col("kind") == DeadLetterKind.LATE
        rows = scan_facts(self._home / DEAD_LETTERS.name).filter(is_late, pl.col("operator") == name)
        rows = rows.filter(pl.col("batch_id").is_in(ids["batch_id"].unique().implode()))
        late = rows.collect().join(ids, on=list(LATE_ID), how="semi")
        in_order = late.sort("batch_id", "partition", "offset")
        return read_again(in_order, self._schemas[self._inputs[name][0]])

    def forgotten(self, was: StreamProgress, watermark_ms: int | None = None) -> dict[str, int]:
        """Returns, by aggregate, the latest end of a window whose states are removed, so that it cannot be corrected.

        By default that is as of the progress *was*; with *watermark_ms*, as it will be at that watermark.
        """
        # Windows before a new or longer `reopen_for` stay forgotten: their states are gone already.
        forgotten_before = forgotten(self._windows, was)
        return forgotten_before if watermark_ms is None else self._ends_ms(watermark_ms, forgotten_before)

    def ended(self, now: StreamProgress) -> dict[str, int]:
        """Returns, by aggregate, the latest end of a window whose states are removed because time advanced to *now*."""
        # The end does not go back where `allowed_lateness` or `reopen_for` was made longer.
        return {**now.ended} if now.watermark_ms is None else self._ends_ms(now.watermark_ms, now.ended)

    def _ends_ms(self, watermark_ms: int, at_least_ms: Mapping[str, int]) -> dict[str, int]:
        """Returns, by aggregate, the latest end of a window whose states are removed at *watermark_ms*.

        An end in *at_least_ms* is never lowered.
        """
        ends_ms: dict[str, int] = {}
        for name, windows in self._windows.items():
            end_ms = windows.forgotten_up_to_ms(watermark_ms)
            # States that are gone do not come back with a longer `reopen_for`.
            ends_ms[name] = max(end_ms, at_least_ms.get(name, end_ms))
        return ends_ms


def forgotten(windows_of: Mapping[str, Windows], was: StreamProgress) -> dict[str, int]:
    """Returns, by aggregate, the latest end of a window whose states are removed after the progress *was*.

    *windows_of* has the windows of each aggregate. An aggregate whose windows are all open is left out.
    """
    if was.watermark_ms is None:
        return {name: was.forgotten[name] for name in windows_of if name in was.forgotten}
    ends_ms: dict[str, int] = {}
    for name, windows in windows_of.items():
        # A new aggregate has no state of a window that was closed before.
        ends_ms[name] = was.forgotten.get(name, windows.closed_up_to_ms(was.watermark_ms))
    return ends_ms
