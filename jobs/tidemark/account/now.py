"""What the streams of a topology do at an instant, by what they recorded: their drivers, batches and looks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.broker import BROKER
from tidemark.account.owners.pause import PAUSE
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.recorded import Recorded
from tidemark.account.unfinished import RUNNING, until_now
from tidemark.account.warehouse import AccountTables
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.liveness import drivers_of
from tidemark.facts.planned_facts import has_no_news
from tidemark.model.topology import SubTopology, Topology
from tidemark.semantics.liveness import HAS_DRIVER, LIMITS, Liveness, Sign

MISSED = 2
"""A driver without a sign of life for so many heartbeats looks no more."""


def looks_no_more_after_ms(driver: HeartbeatFacts, sign: Sign) -> int:
    """Returns how old the newest *sign* of life of *driver* is at least if it looks no more, ms."""
    return MISSED * LIMITS[sign.kind, driver.evidence.store].every_ms


def has_missed_beats(driver: HeartbeatFacts, at_ms: int) -> bool:
    """Returns True if *driver* should have told more than one heartbeat before *at_ms*, epoch ms, and has not."""
    sign, beat = driver.evidence.newest, driver.beat
    return sign is not None and beat is not None and at_ms - beat.at_ms > looks_no_more_after_ms(driver, sign)


@dataclass(frozen=True)
class StreamsNow:
    """The streams of a topology at *at_ms* (epoch ms), by what they have *recorded* and by their *ledger*."""

    tables: AccountTables
    recorded: Recorded
    ledger: Ledger
    at_ms: int

    @property
    def topology(self) -> Topology:
        """The topology."""
        return self.tables.topology

    def name(self, sub: SubTopology) -> str:
        """Returns the full name of the stream that runs *sub*."""
        return f"{self.topology.name}/{sub.name}"

    @cached_property
    def facts(self) -> AccountFacts:
        """What is known, with what each stream does now as its last segment."""
        return until_now(self.ledger.facts, pl.DataFrame([*self._running()], schema=RUNNING))

    def _running(self) -> Iterator[dict[str, Any]]:
        for sub in self.topology.sub_topologies:
            stream = self.name(sub)
            driver = self.driver(stream)
            if driver is not None:
                owner, detail = self.owner(sub)
                yield {
                    "stream": stream,
                    "driver": driver["driver"],
                    "owner": owner,
                    "detail": detail,
                    "now_ms": self.at_ms - driver["to_reference_ms"],
                }

    def owner(self, sub: SubTopology) -> tuple[str, str]:
        """Returns whose the time of *sub* is now: the segment that its newest heartbeat names, unless it is gone.

        A driver that holds its lease and beats no more stands still.
        """
        stream, driver = self.name(sub), self._drivers[sub.name]
        if driver.liveness not in HAS_DRIVER or driver.liveness is Liveness.STARTING:
            return ABSENCE, stream
        if has_missed_beats(driver, self.at_ms):
            return (PAUSE if driver.evidence.is_held else ABSENCE), stream
        segments = self.ledger.facts.segments.filter(pl.col("stream") == stream).sort("driver", "ended_ms")
        newest = segments.tail(1).select("owner", "detail").rows()
        return newest[0] if newest else (ABSENCE, stream)

    def nobody_looks(self, sub: SubTopology) -> bool:
        """Returns True if no driver of *sub* looks for records now."""
        return self.owner(sub)[0] in {ABSENCE, PAUSE}

    @cached_property
    def _drivers(self) -> dict[str, HeartbeatFacts]:
        return drivers_of(self.tables.layout, self.topology, at_ms=self.at_ms, stored=self.tables.stored)

    def driver(self, stream: str) -> dict[str, Any] | None:
        """Returns number, host and clock of the newest driver of *stream*; None: it had none."""
        drivers = self.ledger.clocks.filter(pl.col("stream") == stream).sort("driver")
        return drivers.row(-1, named=True) if drivers.height else None

    def next_batch(self, stream: str) -> int:
        """Returns the number of the batch after the newest one that has finished."""
        newest = self.ledger.facts.batches.filter(pl.col("stream") == stream).select(pl.max("batch_id")).item()
        return 0 if newest is None else int(newest) + 1

    def running_look_ms(self, stream: str) -> int | None:
        """Returns the look that found the records of a batch that has not finished, reference; None: none runs."""
        rows = self._segments(stream).filter(pl.col("batch_id") >= self.next_batch(stream))
        waited_ms = rows.filter(pl.col("owner") == TRIGGER).select(pl.max("ended_ms")).item()
        rows = rows if waited_ms is None else rows.filter(pl.col("began_ms") >= waited_ms)
        began_ms = rows.filter(pl.col("owner") != BROKER).select(pl.min("began_ms")).item()
        if began_ms is None:
            return None
        looks = rows.filter(pl.col("owner") == BROKER, pl.col("ended_ms") <= began_ms)
        return int(began_ms if looks.is_empty() else looks.select(pl.max("ended_ms")).item())

    def has_no_news(self, sub: SubTopology) -> bool:
        """Returns True if the batches of *sub* that have not finished are known to read no record of its sources."""
        tables = self.tables
        return has_no_news(tables.layout, self.topology.name, sub, at_ms=self.at_ms, stored=tables.stored)

    def last_look_ms(self, stream: str, *, before_ms: int | None = None) -> int | None:
        """Returns when *stream* looked for records last, reference, and *before_ms* if given; None: it never did."""
        is_before = pl.lit(value=True) if before_ms is None else pl.col("ended_ms") < before_ms
        looks = self._segments(stream).filter(pl.col("owner") == BROKER, is_before)
        return None if looks.is_empty() else int(looks.select(pl.max("ended_ms")).item())

    def _segments(self, stream: str) -> pl.DataFrame:
        """Returns the segments of *stream* by the reference clock."""
        segments = self.ledger.facts.segments.filter(pl.col("stream") == stream)
        clocks = self.ledger.clocks.select("stream", "driver", "to_reference_ms")
        return segments.join(clocks, on=["stream", "driver"]).with_columns(
            pl.col("began_ms", "ended_ms") + pl.col("to_reference_ms")
        )
