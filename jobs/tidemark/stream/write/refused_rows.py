"""Sets aside rows that a sink's table refuses although their batch was decided.

A batch is decided by the constraints that the table has at that time (`stream/operate/sink.py`). If constraints were
added before its commit, the commit notes them. So whoever carries the batch out again refuses the same rows, whatever
constraints the table has by then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import polars as pl

from tidemark.kernels.sql.constraints import Constraint
from tidemark.model.kinds.sink import Sink
from tidemark.storage.delta.tables import NO_NOTES, Notes
from tidemark.storage.files import File, Files, Rows, frames, stats_of, write_parquet
from tidemark.stream.operate.sink import accepted_records, accepted_rows, sink_rows

NOTE = "constraints"
"""The note of a commit with the constraints that came after its batch was decided."""


@dataclass
class LateRefusals:
    """The rows of a sink in a journal entry, some of which the table may refuse now.

    Attributes:
        sink: the sink.
        folder: the folder of the table, which also has the files of rows that were too many for the entry.
        rows: the rows in the entry.
        batch_id: the batch.
        decided: the constraints by which the batch was decided.
        refused: the refused rows, as rows of `dead_letters`; None until `accept` or `accept_as_noted` was called.
    """

    sink: Sink
    folder: Path
    rows: Rows
    batch_id: int
    decided: tuple[Constraint, ...]
    refused: list[pl.DataFrame] | None = field(default=None, init=False)
    _accepted: Rows | None = field(default=None, init=False)
    _kept: list[tuple[File, pl.DataFrame]] = field(default_factory=list, init=False)

    @property
    def accepted(self) -> Rows:
        """The rows that the table got, in its columns."""
        assert self._accepted is not None
        return self._accepted

    def accept(self, constraints: tuple[Constraint, ...]) -> tuple[Rows, Notes]:
        """Returns the rows that the table gets under *constraints*, and the notes of the commit."""
        is_as_decided = constraints == self.decided
        self._split(() if is_as_decided else constraints)
        if isinstance(self.rows, Files) and not is_as_decided:
            self._accepted = Files(tuple(_written(self.folder, file, rows) for file, rows in self._kept))
        note = msgspec.json.encode(constraints).decode()
        return self.accepted, NO_NOTES if is_as_decided else {NOTE: note}

    def accept_as_noted(self, note: str | None) -> None:
        """Splits the rows as they were split when the batch was committed with *note*."""
        self._split(msgspec.json.decode(note, type=tuple[Constraint, ...]) if note else ())

    def _split(self, constraints: tuple[Constraint, ...]) -> None:
        self.refused, self._kept = [], []
        if not isinstance(self.rows, Files):
            records = pl.DataFrame(self.rows)
            if constraints:
                is_accepted, refused = accepted_records(self.sink, records, self.batch_id, constraints)
                self.refused.append(refused)
                records = records.filter(is_accepted)
            self._accepted = sink_rows(self.sink, records.to_arrow(), self.batch_id)
            return
        self._accepted = self.rows
        for file in self.rows.files if constraints else ():
            # The folder may have moved since the file was written.
            name = Path(file.path).name
            kept = []
            for rows in frames(Files((replace(file, path=str(self.folder / name)),))):
                accepted, refused = accepted_rows(self.sink, rows, constraints)
                kept.append(accepted)
                self.refused.append(refused)
            self._kept.append((file, pl.concat(kept)))


def _written(folder: Path, file: File, rows: pl.DataFrame) -> File:
    """Returns *file* if it has just these *rows*, or a new file with them in *folder*."""
    if rows.height == file.rows:
        return file
    # Each attempt uses the same name, so that drivers that are killed leave one file.
    path = folder / f"{Path(file.path).stem}-accepted.parquet"
    path.unlink(missing_ok=True)
    write_parquet(path, rows.to_arrow())
    return File(str(path), rows.height, stats_of(rows))
