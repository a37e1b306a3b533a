"""Answers questions about the drivers of a stream: state, restarts, newest work.

A heartbeat counts from its `at` on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.collecting import pick
from tidemark.control.folder import Control, Heartbeat, StreamState, store_of
from tidemark.control.liveness import completed, sign_of
from tidemark.errors import UnreadableFile
from tidemark.facts.fact_tables import FactTables
from tidemark.kernels.reports.reads import partition_reads
from tidemark.kernels.reports.restarts import Restart, restarts, with_unread
from tidemark.model.settings.intervals import epoch_ms, utc
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, PARTITION_BATCHES
from tidemark.model.topology import SubTopology
from tidemark.semantics.liveness import (
    WITHOUT_BEATS_MS,
    WORKS,
    DriverEvidence,
    EvidenceKind,
    Liveness,
    Sign,
    is_silent,
    knows_sources,
    liveness,
)
from tidemark.semantics.open_transactions import OpenTransaction
from tidemark.semantics.progress import Place
from tidemark.semantics.segments import is_pause

_LOAD = (
    *("memory_bytes", "memory_free_bytes", "state_bytes"),
    *("records_behind", "arrival_per_s", "working_per_s"),
)
"""Columns of `heartbeats` about a driver's load, as fields of Beat."""
BEAT_COLUMNS = (
    *("beat_at", "epoch", "state", "reason", "drained_by", "step_began_at", "batch_id", "batch_started_at", "eta_at"),
    "open_transactions",
    "ambiguous_keys",
    *_LOAD,
)
"""Columns of `heartbeats` that facts about a driver need."""


@dataclass(frozen=True)
class Beat:
    """The newest heartbeat of a driver."""

    state: StreamState
    at_ms: int
    batch_started_at_ms: int | None
    reason: str | None
    drained_by: str | None = None
    """Who asked a drained driver to end."""
    killed_for: str | None = None
    """The stream that hung and made its shared process be killed."""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    state_bytes: int | None = None
    records_behind: int | None = None
    arrival_per_s: float | None = None
    working_per_s: float | None = None
    eta_at_ms: int | None = None
    open_transactions: tuple[OpenTransaction, ...] = ()

    @property
    def is_short_of_memory(self) -> bool:
        """True if less than a tenth of the driver's memory is free."""
        if self.memory_bytes is None or self.memory_free_bytes is None:
            return False
        # Free memory is less than a tenth of the sum of used and free.
        return self.memory_free_bytes * 9 < self.memory_bytes


class HeartbeatFacts:
    """The drivers of the stream with *tables* in *home* and the folder *control*.

    *trigger_ms* is that of the topology. Restarts are known that ended in the last half of the recent time. The control
    folder has only the newest heartbeat, so that is read at once: later it is one of after the instant.
    """

    def __init__(self, tables: FactTables, home: Path, control: Path, trigger_ms: int) -> None:
        self._tables, self._home, self._control, self._trigger_ms = tables, home, control, trigger_ms
        self._heard: Heartbeat | None = None
        self._may_read = False
        with suppress(PermissionError):
            self._heard, self._may_read = Control(control).heartbeat(), True

    @cached_property
    def liveness(self) -> Liveness:
        """What has become of the newest driver, in one word: what every page, command and check shows."""
        return liveness(self.evidence, self._tables.at_ms)

    @property
    def is_from_folder(self) -> bool:
        """True if the newest heartbeat is that of the control folder."""
        newest = self.evidence.newest
        return newest is not None and newest.kind is EvidenceKind.CONTROL

    @property
    def is_silent(self) -> bool:
        """True if the driver, if it lives, should have sent a heartbeat since the newest one."""
        return is_silent(self.evidence, self._tables.at_ms)

    @property
    def works(self) -> bool:
        """True if what the driver last found of its sources still holds.

        A stream without heartbeats, such as a query that a job only measures, may work for a day after its last batch.
        """
        if self.beat is not None:
            return knows_sources(self.liveness, self._tables.at_ms - self.beat.at_ms)
        finished_ms = self._finished_ms
        return finished_ms is not None and finished_ms >= self._tables.at_ms - WITHOUT_BEATS_MS

    @cached_property
    def looked_ms(self) -> int:
        """Until when somebody has looked for records, epoch ms: what came later is not known to be silence.

        A driver looks from its first batch on. Without heartbeats nothing says that it stopped.
        """
        live, newest, batches = self._live, self.evidence.newest, self._tables.batches
        if newest is None:
            return self._tables.at_ms
        looking = self._beats.filter(pl.col("batch_id") >= 0).select("epoch", at_ms="beat_at")
        looking = pl.concat([looking, batches.select("epoch", at_ms="finished_at")], how="vertical_relaxed")
        looked_ms, epochs = [*looking["at_ms"]], {*looking["epoch"]}
        if live is not None and live.batch_id >= 0:
            looked_ms, epochs = [*looked_ms, live.at_ms], {*epochs, live.epoch}
        if newest.epoch in epochs and self.liveness in WORKS:
            return self._tables.at_ms
        return max(looked_ms, default=self._tables.at_ms)

    @property
    def looks(self) -> bool:
        """Whether somebody looks for records at the instant."""
        return self.looked_ms == self._tables.at_ms

    @cached_property
    def evidence(self) -> DriverEvidence:
        """What is known of the newest driver."""
        live, row = self._live, self._row
        of_row = None if row is None else _sign(row)
        control = None if live is None else sign_of(live)
        # A heartbeat without a step leaves open whether a batch runs, and what an earlier driver did says nothing.
        if control is not None and live is not None and not live.doing and of_row and of_row.epoch == live.epoch:
            control = replace(control, working_since_ms=of_row.working_since_ms)
        has_batches = control is None and of_row is None and self._finished_ms is not None
        found = DriverEvidence(
            store=store_of(self._home),
            control=control,
            row=of_row,
            may_read_control=self._may_read,
            has_batches=has_batches,
        )
        if (later := self._next_epoch) is not None:
            # The next heartbeat after the instant says whose lease it was then.
            return replace(found, is_held=found.newest is not None and later == found.newest.epoch)
        with suppress(PermissionError):
            return completed(found, Control(self._control), self._tables.at_ms)
        return found

    @cached_property
    def _finished_ms(self) -> int | None:
        """When the newest batch finished; None: none has."""
        at_ms = self._tables.at_ms
        within_a_day = pl.col("finished_at").is_between(utc(at_ms - WITHOUT_BEATS_MS), utc(at_ms))
        # Mostly there is one, and files without such batches are not read.
        lately = self._tables.scan(BATCHES, where=[within_a_day]).select(pl.col("finished_at").max()).collect().item()
        newest = self._tables.batches["finished_at"].max() if lately is None else lately
        return newest if isinstance(newest, int) else None

    @property
    def _next_epoch(self) -> int | None:
        """The epoch of the first heartbeat after the instant; None: there is none, or it may not be read."""
        later = self._recent_beats["epoch"].slice(self._beats.height, 1)
        if later.len():
            return int(later.item())
        return None if self._heard is None or self.is_newest else self._heard.epoch

    @cached_property
    def was_replaced(self) -> bool:
        """True if the driver is known to have ended by the instant: later signs of life are of another one alone."""
        newest, later = self.evidence.newest, self._next_epoch
        if newest is None or later is None or later == newest.epoch:
            return False
        batches = self._tables.recent_batches
        return not batches.filter(pl.col("epoch") == newest.epoch, pl.col("finished_at") > self._tables.at_ms).height

    @cached_property
    def stood_still(self) -> bool:
        """True if the driver's next heartbeat tells that its process stood still at the instant."""
        if self._next_epoch is None:
            return False
        at_ms, boot_ms = self._tables.at_ms, pl.col("pulse_boot_ms") - pl.col("beat_at") + self._tables.at_ms
        beats = self._tables.scan(HEARTBEATS, where=[pl.col("beat_at") > utc(at_ms)])
        told = beats.select("beat_at", "epoch", "pulse_boot_ms", "gaps").sort("beat_at", "epoch").first().collect()
        gaps = told.with_columns(boot_ms=boot_ms).explode("gaps").drop_nulls("gaps").unnest("gaps")
        is_now = pl.col("boot_ms").is_between("began_ms", "ended_ms", closed="left")
        return bool(gaps.filter(is_now, is_pause(pl.col("ended_ms") - pl.col("began_ms"), pl.col("cpu_ms"))).height)

    @cached_property
    def beat(self) -> Beat | None:
        """The newest heartbeat, from the control folder or from the table."""
        newest = self.evidence.newest
        if newest is None:
            return None
        row, live = self._row, self._live
        # What an earlier driver measured says nothing about a new one.
        is_own = row is not None and row["epoch"] == newest.epoch
        load: dict[str, Any] = dict(_load(row)) if row is not None and is_own else {}
        if newest.kind is EvidenceKind.ROWS or live is None:
            assert row is not None
            return Beat(StreamState(row["state"]), newest.at_ms, row["batch_started_at"], row["reason"], **load)
        began_ms = row["batch_started_at"] if row is not None and is_own else None
        if live.doing:
            began_ms = live.since_ms if live.is_in_batch else None
        is_dead = self.liveness is Liveness.DEAD
        killed_for = Control(self._control).killed_for(live.launch_id) if is_dead else None
        load["drained_by"] = live.drained_by
        return Beat(live.state, live.at_ms, began_ms, live.reason, killed_for=killed_for, **load)

    @cached_property
    def _row(self) -> dict[str, Any] | None:
        """The newest heartbeat of the table; there is one every 15 s."""
        return next(self._beats.tail(1).iter_rows(named=True), None)

    @property
    def _live(self) -> Heartbeat | None:
        """The newest heartbeat of the control folder.

        None if it is later, too, and for a user who may not read the folder.
        """
        return self._heard if self.is_newest else None

    @cached_property
    def started_ms(self) -> int:
        """When the newest driver first beat."""
        live = self._live
        if live is not None and live.state is StreamState.STARTING:
            return live.since_ms or live.at_ms
        newest = self._beats["epoch"].max()
        if newest is None:
            return self._tables.at_ms
        of_newest = pl.col("epoch") == newest
        own = self._beats.filter(of_newest)
        if self._tables.first and own.height == self._beats.height:  # its first one may be older
            own = self._tables.scan(HEARTBEATS).filter(of_newest).select("beat_at").collect()
        return int(own["beat_at"].min())  # type: ignore[arg-type]

    @cached_property
    def restart(self) -> Restart | None:
        """The newest recent restart that had begun; None: there was none."""
        # A restart that had begun counts with its end, even if that came later.
        recent = restarts(self._tables.recent_batches, self._recent_beats, trigger_ms=self._trigger_ms)
        begun_restarts = [restart for restart in recent if restart.from_ms <= self._tables.at_ms]
        return begun_restarts[-1] if begun_restarts else None

    def with_unread(self, restart: Restart) -> Restart:
        """Returns *restart* with all records that waited for its end."""
        rows = self._tables.scan(PARTITION_BATCHES, where=[pl.col("batch_id") >= restart.batch_id])
        reads = partition_reads(rows).select("batch_id", "source", "partition", "until_offset", "latest_offset")
        return with_unread(restart, reads.collect())

    @cached_property
    def _recent_beats(self) -> pl.DataFrame:
        """The recent heartbeats, oldest first, also later ones."""

        def read(first: int) -> pl.DataFrame:
            are_recent = [pl.col("beat_at") >= utc(self._tables.since_ms)] if first else []
            beats = self._tables.scan(HEARTBEATS, where=are_recent).select(BEAT_COLUMNS)
            rows = beats.sort("beat_at", "epoch").collect()
            # As in the control folder, a heartbeat with another state says nothing that is known here. A query of a
            # frame takes 0.3 ms, and metrics read this with each scrape.
            known = {*map(str, StreamState)}
            return rows if known.issuperset(rows["state"]) else rows.filter(pl.col("state").is_in(known))

        # The newest heartbeat may be older.
        return self._tables.recent_first(read, lambda recent: bool((recent["beat_at"] <= self._tables.at_ms).any()))

    @cached_property
    def _beats(self) -> pl.DataFrame:
        """The heartbeats, oldest first."""
        beats = self._recent_beats
        return beats.head(int((beats["beat_at"] <= self._tables.at_ms).sum()))

    @cached_property
    def worked_ms(self) -> int:
        """The driver's newest sign of work: a finished batch, or its heartbeat's.

        A heartbeat within a batch is such a sign itself. In another one it is the begin of the driver's present step.
        """
        within_batch = pl.when(pl.col("batch_started_at").is_not_null()).then("beat_at")
        beats = self._beats.tail(1).select(pl.coalesce(within_batch, "step_began_at", "beat_at"))
        live = self._live
        live_ms = [] if live is None else [live.at_ms if live.is_in_batch else live.since_ms or live.at_ms]
        signs_ms = [*beats.to_series(), *self._tables.batches["finished_at"].tail(1), *live_ms]
        return max(signs_ms, default=self._tables.at_ms)

    @property
    def has_finished(self) -> bool:
        """True if the newest heartbeat knows a finished batch, whose facts come with the next one."""
        live = self._live
        newest = [*self._beats["batch_id"].tail(1), *([] if live is None else [live.batch_id])]
        return max(newest, default=-1) >= 0

    @property
    def ran_ms(self) -> int | None:
        """When the newest driver first beat as one that runs; None: it has not."""
        beats = self._beats
        ran = (pl.col("epoch") == pl.col("epoch").max()) & (pl.col("state") == StreamState.RUNNING)
        return beats.filter(ran)["beat_at"].min()  # type: ignore[return-value]

    @property
    def ambiguous_keys(self) -> int | None:
        """How many keys have several rows in the Delta tables that the newest driver joins; None: it joins none."""
        of_newest = pl.col("epoch") == pl.col("epoch").max()
        own = self._beats.filter(of_newest)["ambiguous_keys"].drop_nulls()
        return own[-1] if own.len() else None

    def finished_after(self, at_ms: int) -> bool:
        """Returns True if a batch finished after the heartbeat of *at_ms*."""
        # Heartbeats in the table come every 15 s, so a batch may be newer.
        return bool((self._tables.batches["finished_at"] > at_ms).any())

    @cached_property
    def damages(self) -> list[UnreadableFile]:
        """The damaged files for which no driver starts; none for a user who may not read the control folder."""
        from tidemark.stream.startup.damage import damages

        with suppress(PermissionError):
            return damages(self._control, self._home)
        return []

    def lost_commits(self, app_id: str) -> list[UnreadableFile]:
        """Returns the tables without a batch that the journal of the stream *app_id* knows of; see `damages`."""
        from tidemark.stream.startup.evidence import lost_commits

        with suppress(PermissionError):
            return [*lost_commits(self._control, self._home, app_id)]
        return []

    @property
    def is_newest(self) -> bool:
        """True if no driver has sent a heartbeat after the instant."""
        return self._may_read and (self._heard is None or self._heard.at_ms <= self._tables.at_ms)

    def being_read(self, sub: SubTopology) -> dict[str, int]:
        """Returns how many records of each source of *sub* the undecided batch has at most, most first.

        Empty if there is no such batch, and for a user who may not read the control folder.
        """
        from tidemark.stream.startup.unread import most_records

        with suppress(PermissionError):
            return most_records(self._control, sub, at_ms=self._tables.at_ms)
        return {}

    def reading(self, sub: SubTopology) -> str:
        """Returns records that the driver of *sub* had begun to read.

        They are not decided yet. The result is part of a sentence. It is empty if there are none, and for a user who
        may not read the control folder.
        """
        from tidemark.stream.startup.unread import begun

        with suppress(PermissionError):
            return begun(self._control, sub)
        return ""


def _sign(row: Mapping[str, Any]) -> Sign:
    """Returns a row of `heartbeats` as evidence."""
    is_starting = row["state"] == StreamState.STARTING
    return Sign(
        kind=EvidenceKind.ROWS,
        reported=Liveness(row["state"]),
        epoch=row["epoch"],
        at_ms=row["beat_at"],
        working_since_ms=row["step_began_at"] if is_starting else row["batch_started_at"],
        waits=row["reason"] is not None,
        eta_at_ms=row["eta_at"],
    )


def _load(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a Beat that only the table has."""
    yield from pick(row, _LOAD).items()
    yield "eta_at_ms", row["eta_at"]
    yield "drained_by", row["drained_by"]
    yield "open_transactions", _open(row)


def _open(beat: Mapping[str, Any]) -> tuple[OpenTransaction, ...]:
    """Returns the open transactions in a row of `heartbeats`."""
    found: list[OpenTransaction] = []
    for row in beat["open_transactions"] or ():
        topic, _, number = row["topic_partition"].rpartition("/")
        found.append(
            OpenTransaction(
                source=row["source"],
                partition=row["partition"],
                place=Place(topic, int(number)),
                stable_offset=row["stable_offset"],
                since_ms=epoch_ms(row["found_at"]),
            )
        )
    return tuple(found)
