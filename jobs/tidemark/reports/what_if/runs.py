"""Estimates how much sooner windows are visible in a run in which an owner of a driver's time takes as long as usual.

A stream that does not stand still looks sooner, but not before its trigger: the waiting that the stop has eaten comes
back. So does that of each stream that reads what it writes. Instants are epoch ms by the reference clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import polars as pl

from tidemark.account.ledger import Ledger
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.timeline import overlay
from tidemark.model.topology import Topology
from tidemark.reports.what_if.estimates import distances_of
from tidemark.semantics.what_if import look_then_ms


@dataclass(frozen=True, kw_only=True)
class Stay:
    """The time of a window in *stream*, ms, of which *changed_ms* is the owner's."""

    stream: str
    ms: int
    changed_ms: int


class Runs:
    """The streams of *topology* as they ran by their *ledger*, and without a share of the time of an owner.

    *is_changed* is the condition on the timeline for that owner's time.
    """

    def __init__(self, topology: Topology, ledger: Ledger, is_changed: pl.Expr) -> None:
        # Writers come before the streams that read their hops.
        self._order = [f"{topology.name}/{sub.name}" for sub in topology.sub_topologies]
        self._distances_ms = {f"{topology.name}/{sub}": ms for sub, ms in distances_of(topology).items()}
        self._is_changed = is_changed
        self._timelines = {stream: ledger.timeline.filter(pl.col("stream") == stream) for stream in self._order}
        looks = ledger.batches.drop_nulls("looked_ms").sort("looked_ms")
        self._looks: dict[str, list[tuple[int, int | None]]] = {
            str(stream): rows.select("looked_ms", "excluded_ms").rows()
            for (stream,), rows in looks.group_by("stream", maintain_order=True)
        }

    def sooner_ms(self, stays: Sequence[Stay], visible_ms: int, excess: float) -> int:
        """Returns by how much sooner a window is visible that was so at *visible_ms*.

        Of the owner's time it is without the share *excess*, 0 to 1. *stays* are in any order.
        """
        arrived_ms, sooner_ms = visible_ms - sum(stay.ms for stay in stays), 0
        for stay in sorted(stays, key=lambda stay: self._order.index(stay.stream)):
            sooner_ms = self._sooner_after(stay, arrived_ms, sooner_ms, excess)
            arrived_ms += stay.ms
        return sooner_ms

    def _sooner_after(self, stay: Stay, arrived_ms: int, sooner_ms: int, excess: float) -> int:
        """Returns by how much sooner a window leaves a stream, which it entered at *arrived_ms*, and then *sooner_ms*
        sooner.
        """
        looks = self._looks.get(stay.stream, [])
        n = bisect_left(looks, arrived_ms, key=itemgetter(0))
        look_ms, before_ms = looks[n] if n < len(looks) else (0, None)
        if before_ms is None or look_ms > arrived_ms + stay.ms:
            # No look is known at which it could have come sooner.
            return sooner_ms + round(excess * stay.changed_ms)
        waited_ms = _sum_ms(self._pieces(stay.stream, arrived_ms, look_ms).filter(self._is_changed))
        after_ms = round(excess * (stay.changed_ms - waited_ms))
        pieces = self._pieces(stay.stream, before_ms, look_ms)
        changed = pieces.filter(self._is_changed)
        left_out_ms = round(excess * _sum_ms(changed))
        trigger_ms = self._distances_ms[stay.stream]
        if not trigger_ms:
            return sooner_ms + left_out_ms + after_ms
        # What it waited for its trigger after that time is free, too.
        is_later = pl.col("piece_began_ms") >= max(changed["piece_ended_ms"].to_list(), default=look_ms)
        free_ms = look_ms - left_out_ms - _sum_ms(pieces.filter(pl.col("owner") == TRIGGER, is_later))
        then_ms = look_then_ms(look_ms, before_ms, free_ms, arrived_ms - sooner_ms, trigger_ms)
        return look_ms - then_ms + after_ms

    def _pieces(self, stream: str, since_ms: int, until_ms: int) -> pl.DataFrame:
        """Returns the pieces of the timeline of *stream* between two instants."""
        span = {"stream": [stream], "began_ms": [since_ms], "ended_ms": [until_ms], "error_ms": [0]}
        return overlay(pl.DataFrame(span), self._timelines[stream])


def _sum_ms(pieces: pl.DataFrame) -> int:
    return int(pieces["ms"].sum())
