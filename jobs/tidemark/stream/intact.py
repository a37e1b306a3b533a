"""Nothing is skipped in silence: what a topic lost before it was read stops the stream, until somebody gives it up.

Spark's own check (`failOnDataLoss`) is off. It ends the query in the middle of planning, names no remedy, and does so
again after every restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from tidemark.errors import TidemarkError
from tidemark.kernels.loss import lost
from tidemark.spec.operators import Source
from tidemark.stream.batch import Batch

Offsets = Mapping[int, tuple[int, int]]
"""Per partition offsets from (inclusive) until (exclusive)."""
Accepted = Callable[[], Mapping[tuple[str, int, int], int]]
"""Per source, partition and offset at which the stream is, the one from which it may go on."""
Reread = Callable[[Source, Offsets], pl.DataFrame]
"""Reads records of a source's topic that Spark passed over."""


class DataLost(TidemarkError):
    """Raised when a topic no longer has records that were not read."""


@dataclass(frozen=True)
class Checked:
    """The rows of a source, where each partition was read to before them, and per partition what was given up."""

    rows: pl.DataFrame
    read_to: Mapping[int, int]
    losses: Offsets


def nothing_to_reread(source: Source, _: Offsets) -> pl.DataFrame:
    """For streams without Spark: nobody passes over anything."""
    msg = f"{source.name}: there is no way to read its topic again"
    raise TidemarkError(msg)


class Intact:
    """Compares what a batch read of a topic with what the broker has, for the stream *name* (as the CLI takes it)."""

    def __init__(self, name: str, accepted: Accepted, reread: Reread) -> None:
        self._name, self._accepted, self._reread = name, accepted, reread

    def check(
        self,
        source: Source,
        rows: pl.DataFrame,
        read_to: Mapping[int, int],
        offsets: Offsets,
        batch: Batch,
    ) -> Checked:
        """The *rows* of *source* when nothing before them is missing; raises DataLost when something is.

        *offsets* are the earliest and latest of the partitions that were silent or left something out.

        A loss that was accepted is passed over. Where the topic was made anew its offsets begin anew, too: the stream
        goes on from the accepted offset, and later rows of the tables name offsets that earlier ones have named.

        Known limitation: a topic made anew that has already grown beyond where the stream was is not told apart.
        """
        ends = batch.ends.get(source.topic or "", {})
        goes_on = dict(read_to)
        losses: dict[int, tuple[int, int]] = {}
        anew: dict[int, tuple[int, int]] = {}
        for number, (earliest, _) in offsets.items():
            if number not in read_to:
                continue
            at = read_to[number]
            end = ends.get(number, at)
            if end < at:
                goes_on[number] = self._accepted_anew(source, number, at, earliest, end)
                losses[number] = (at, goes_on[number])
                anew[number] = (goes_on[number], end)
            elif (gone := lost(rows, number, read_to=at, earliest=earliest)) is not None:
                losses[number] = self._accepted_gone(source, number, at, gone)
                goes_on[number] = gone[1] if gone[0] == at else at
        if unread := {number: part for number, part in anew.items() if part[0] < part[1]}:
            # Spark was ahead of the new topic's end, and goes on from there.
            again = self._reread(source, unread)
            rows = pl.concat([rows, again], how="diagonal").sort("partition", "offset")
        return Checked(rows, goes_on, losses)

    def _accepted_gone(self, source: Source, number: int, at: int, gone: tuple[int, int]) -> tuple[int, int]:
        if self._accepted().get((source.name, number, at), 0) < gone[1]:
            raise self._refused(source, number, f"offsets {gone[0]} until {gone[1]} are gone unread", gone[1])
        return gone

    def _accepted_anew(self, source: Source, number: int, at: int, earliest: int, end: int) -> int:
        accepted = self._accepted().get((source.name, number, at))
        if accepted is None or not earliest <= accepted <= end:
            seen = f"the topic was made anew: it ends at offset {end}, and {at} was the next to read"
            raise self._refused(source, number, seen, earliest)
        return accepted

    def _refused(self, source: Source, number: int, seen: str, until: int) -> DataLost:
        command = f"tidemark accept-loss {self._name} --source {source.name} --partition {number} --until {until}"
        return DataLost(
            f"topic {source.topic!r}, partition {number}: {seen}; nothing is skipped in silence: restore the records, "
            f"or give them up and go on from offset {until}: {command} --by NAME --reason TEXT"
        )
