"""Answers questions about the drivers of a stream as of an instant: their state, restarts and newest work.

A heartbeat counts from the instant at which it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.control.folder import Control, Heartbeat, StreamState, store_of
from tidemark.control.liveness import completed, sign_of
from tidemark.errors import UnreadableFile
from tidemark.facts.fact_tables import FactTables
from tidemark.kernels.reports.reads import partition_reads
from tidemark.kernels.reports.restarts import Restart, restarts, with_unread
from tidemark.model.settings.intervals import epoch_ms, utc
from tidemark.model.tables.catalog import BATCHES, HEARTBEATS, PARTITION_BATCHES
from tidemark.model.topology import SubTopology
from tidemark.selection import pick
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
from tidemark.semantics.progress import TopicPartition
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
    """The newest heartbeat of a driver; instants are epoch ms of its clock."""

    state: StreamState
    at_ms: int
    batch_started_at_ms: int | None
    reason: str | None
    drained_by: str | None = None
    """Who asked a drained driver to end."""
    killed_for: str | None = None
    """The stream because of which the process was killed: it hung, and shared the process with this one."""
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
    """The drivers of a stream.

    Restarts are known if they ended in the last half of the recent time of *tables*.

    Args:
        tables: the tables of the stream as of an instant.
        home: the folder of these tables.
        control: the control folder of the stream. It has only the newest heartbeat, which is read at once: a driver
            that runs soon replaces it by one from after the instant.
        trigger_ms: the trigger of the topology, ms.
    """

    def __init__(self, tables: FactTables, home: Path, control: Path, trigger_ms: int) -> None:
        self._tables, self._home, self._control, self._trigger_ms = tables, home, control, trigger_ms
        self._heard: Heartbeat | None = None
        self._may_read = False
        with suppress(PermissionError):
            self._heard, self._may_read = Control(control).heartbeat(), True

    @cached_property
    def liveness(self) -> Liveness:
        """What has become of the newest driver, in the word that every page, command and check shows."""
        return liveness(self.evidence, self._tables.at_ms)

    @property
    def is_from_folder(self) -> bool:
        """True if the newest heartbeat is known from the control folder, and not from the table."""
        newest = self.evidence.newest
        return newest is not None and newest.kind is EvidenceKind.CONTROL

    @property
    def is_silent(self) -> bool:
        """True if a living driver should have sent another heartbeat since the newest one."""
        return is_silent(self.evidence, self._tables.at_ms)

    @property
    def works(self) -> bool:
        """True if what the driver last saw of its sources still holds.

        A stream without heartbeats, such as a query that a job only measures, counts as working for a day after its
        last batch.
        """
        if self.beat is not None:
            return knows_sources(self.liveness, self._tables.at_ms - self.beat.at_ms)
        finished_ms = self._finished_ms
        return finished_ms is not None and finished_ms >= self._tables.at_ms - WITHOUT_BEATS_MS

    @cached_property
    def looked_ms(self) -> int:
        """Until when somebody has looked for records, epoch ms; nobody knows whether records came later.

        A driver looks from its first batch on. Without heartbeats it counts as looking until the instant.
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
        """The signs of life of the newest driver, from the control folder and from the table."""
        live, row = self._live, self._newest_row
        of_row = None if row is None else _sign(row)
        control = None if live is None else sign_of(live)
        # A heartbeat without a step leaves open whether a batch runs. A row tells so if it is of the same driver.
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
            # The next heartbeat after the instant says which driver had the lease then.
            return replace(found, is_held=found.newest is not None and later == found.newest.epoch)
        with suppress(PermissionError):
            return completed(found, Control(self._control), self._tables.at_ms)
        return found

    @cached_property
    def _finished_ms(self) -> int | None:
        """When the newest batch finished, epoch ms; None if none has."""
        at_ms = self._tables.at_ms
        within_a_day = pl.col("finished_at").is_between(utc(at_ms - WITHOUT_BEATS_MS), utc(at_ms))
        # Most streams have such a batch, and files without one are not read.
        lately = self._tables.scan(BATCHES, where=[within_a_day]).select(pl.col("finished_at").max()).collect().item()
        newest = self._tables.batches["finished_at"].max() if lately is None else lately
        return newest if isinstance(newest, int) else None

    @property
    def _next_epoch(self) -> int | None:
        """The epoch of the driver that sent the first heartbeat after the instant; None if no such heartbeat is
        known.
        """
        later = self._recent_beats["epoch"].slice(self._beats.height, 1)
        if later.len():
            return int(later.item())
        return None if self._heard is None or self.is_newest else self._heard.epoch

    @cached_property
    def was_replaced(self) -> bool:
        """True if all signs of life after the instant are of another driver, so that this one had ended by then."""
        newest, later = self.evidence.newest, self._next_epoch
        if newest is None or later is None or later == newest.epoch:
            return False
        batches = self._tables.recent_batches
        return not batches.filter(pl.col("epoch") == newest.epoch, pl.col("finished_at") > self._tables.at_ms).height

    @cached_property
    def stood_still(self) -> bool:
        """True if the next heartbeat of the driver tells that its process did not run at the instant."""
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
        """The newest heartbeat, from the control folder or from the table; None without one."""
        newest = self.evidence.newest
        if newest is None:
            return None
        row, live = self._newest_row, self._live
        # The measurements of an earlier driver say nothing about the newest one.
        is_of_newest = row is not None and row["epoch"] == newest.epoch
        load: dict[str, Any] = dict(_load(row)) if row is not None and is_of_newest else {}
        if newest.kind is EvidenceKind.ROWS or live is None:
            assert row is not None
            return Beat(StreamState(row["state"]), newest.at_ms, row["batch_started_at"], row["reason"], **load)
        began_ms = row["batch_started_at"] if row is not None and is_of_newest else None
        if live.doing:
            began_ms = live.since_ms if live.is_in_batch else None
        is_dead = self.liveness is Liveness.DEAD
        killed_for = Control(self._control).killed_for(live.launch_id) if is_dead else None
        load["drained_by"] = live.drained_by
        return Beat(live.state, live.at_ms, began_ms, live.reason, killed_for=killed_for, **load)

    @cached_property
    def _newest_row(self) -> dict[str, Any] | None:
        """The newest heartbeat in the table, which gets one every 15 s; None without one."""
        return next(self._beats.tail(1).iter_rows(named=True), None)

    @property
    def _live(self) -> Heartbeat | None:
        """The heartbeat in the control folder; None if it is later than the instant, or this user may not read it."""
        return self._heard if self.is_newest else None

    @cached_property
    def started_ms(self) -> int:
        """When the newest driver sent its first heartbeat, epoch ms."""
        live = self._live
        if live is not None and live.state is StreamState.STARTING:
            return live.since_ms or live.at_ms
        newest = self._beats["epoch"].max()
        if newest is None:
            return self._tables.at_ms
        of_newest = pl.col("epoch") == newest
        beats = self._beats.filter(of_newest)
        if self._tables.first and beats.height == self._beats.height:  # its first one may not be recent
            beats = self._tables.scan(HEARTBEATS).filter(of_newest).select("beat_at").collect()
        return int(beats["beat_at"].min())  # type: ignore[arg-type]

    @cached_property
    def restart(self) -> Restart | None:
        """The newest recent restart that had begun by the instant; None without one."""
        # The end of such a restart may be later than the instant.
        recent = restarts(self._tables.recent_batches, self._recent_beats, trigger_ms=self._trigger_ms)
        begun_restarts = [restart for restart in recent if restart.from_ms <= self._tables.at_ms]
        return begun_restarts[-1] if begun_restarts else None

    def with_unread(self, restart: Restart) -> Restart:
        """Returns *restart* with the numbers of records that waited for its end."""
        rows = self._tables.scan(PARTITION_BATCHES, where=[pl.col("batch_id") >= restart.batch_id])
        reads = partition_reads(rows).select("batch_id", "source", "partition", "until_offset", "latest_offset")
        return with_unread(restart, reads.collect())

    @cached_property
    def _recent_beats(self) -> pl.DataFrame:
        """The recent heartbeats, oldest first, with those after the instant."""

        def read(first: int) -> pl.DataFrame:
            are_recent = [pl.col("beat_at") >= utc(self._tables.since_ms)] if first else []
            beats = self._tables.scan(HEARTBEATS, where=are_recent).select(BEAT_COLUMNS)
            rows = beats.sort("beat_at", "epoch").collect()
            # Heartbeats with a state that this version does not know are left out, as in the control folder. The
            # filter takes 0.3 ms, and metrics read this with each scrape, so it runs only if it is needed.
            known = {*map(str, StreamState)}
            return rows if known.issuperset(rows["state"]) else rows.filter(pl.col("state").is_in(known))

        # The newest heartbeat that counts may not be recent.
        return self._tables.recent_first(read, lambda recent: bool((recent["beat_at"] <= self._tables.at_ms).any()))

    @cached_property
    def _beats(self) -> pl.DataFrame:
        """The recent heartbeats that count, oldest first."""
        beats = self._recent_beats
        return beats.head(int((beats["beat_at"] <= self._tables.at_ms).sum()))

    @cached_property
    def worked_ms(self) -> int:
        """When the driver last showed a sign of work, epoch ms: with a finished batch, or with a heartbeat.

        A heartbeat within a batch is a sign of work itself. Otherwise the sign is the beginning of the step in which
        the driver was when it sent the heartbeat.
        """
        within_batch = pl.when(pl.col("batch_started_at").is_not_null()).then("beat_at")
        beats = self._beats.tail(1).select(pl.coalesce(within_batch, "step_began_at", "beat_at"))
        live = self._live
        live_ms = [] if live is None else [live.at_ms if live.is_in_batch else live.since_ms or live.at_ms]
        signs_ms = [*beats.to_series(), *self._tables.batches["finished_at"].tail(1), *live_ms]
        return max(signs_ms, default=self._tables.at_ms)

    @property
    def has_finished(self) -> bool:
        """True if the newest heartbeat tells of a finished batch. Its facts are written only with the next batch."""
        live = self._live
        newest = [*self._beats["batch_id"].tail(1), *([] if live is None else [live.batch_id])]
        return max(newest, default=-1) >= 0

    @property
    def ran_ms(self) -> int | None:
        """When the newest driver first sent a heartbeat as running, epoch ms; None if it has not."""
        beats = self._beats
        ran = (pl.col("epoch") == pl.col("epoch").max()) & (pl.col("state") == StreamState.RUNNING)
        return beats.filter(ran)["beat_at"].min()  # type: ignore[return-value]

    @property
    def ambiguous_keys(self) -> int | None:
        """How many keys have several rows in the Delta tables that the newest driver joins; None if it joins none."""
        of_newest = pl.col("epoch") == pl.col("epoch").max()
        counts = self._beats.filter(of_newest)["ambiguous_keys"].drop_nulls()
        return counts[-1] if counts.len() else None

    def finished_after(self, at_ms: int) -> bool:
        """Returns True if a batch finished after the heartbeat of *at_ms*."""
        # Heartbeats in the table come every 15 s, so a batch may be newer.
        return bool((self._tables.batches["finished_at"] > at_ms).any())

    @cached_property
    def damages(self) -> list[UnreadableFile]:
        """The damaged files that keep a driver from starting; none for a user who may not read the control folder."""
        from tidemark.stream.startup.damage import damages

        with suppress(PermissionError):
            return damages(self._control, self._home)
        return []

    def lost_commits(self, app_id: str) -> list[UnreadableFile]:
        """Returns the tables that lack a batch which the journal of the stream *app_id* has written to them.

        There are none for a user who may not read the control folder.
        """
        from tidemark.stream.startup.evidence import lost_commits

        with suppress(PermissionError):
            return [*lost_commits(self._control, self._home, app_id)]
        return []

    @property
    def is_newest(self) -> bool:
        """True if the control folder shows that no driver has sent a heartbeat after the instant."""
        return self._may_read and (self._heard is None or self._heard.at_ms <= self._tables.at_ms)

    def being_read(self, sub: SubTopology) -> dict[str, int]:
        """Returns how many records of each source of *sub* the planned and undecided batch has at most, most first.

        There are none without such a batch, and for a user who may not read the control folder.
        """
        from tidemark.stream.startup.unread import most_records

        with suppress(PermissionError):
            return most_records(self._control, sub, at_ms=self._tables.at_ms)
        return {}

    def reading(self, sub: SubTopology) -> str:
        """Returns a clause about the records of *sub* that its driver has begun to read and not decided.

        The text is empty if there are none, and for a user who may not read the control folder.
        """
        from tidemark.stream.startup.unread import unread_clause

        with suppress(PermissionError):
            return unread_clause(self._control, sub)
        return ""


def _sign(row: Mapping[str, Any]) -> Sign:
    """Returns a row of `heartbeats` as a sign of life."""
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
    """Yields the fields of a Beat, and their values, that only a row of `heartbeats` has."""
    yield from pick(row, _LOAD).items()
    yield "eta_at_ms", row["eta_at"]
    yield "drained_by", row["drained_by"]
    yield "open_transactions", _open_transactions(row)


def _open_transactions(beat: Mapping[str, Any]) -> tuple[OpenTransaction, ...]:
    """Returns the open transactions in a row of `heartbeats`."""
    found: list[OpenTransaction] = []
    for row in beat["open_transactions"] or ():
        topic, _, number = row["topic_partition"].rpartition("/")
        found.append(
            OpenTransaction(
                source=row["source"],
                partition=row["partition"],
                topic_partition=TopicPartition(topic, int(number)),
                stable_offset=row["stable_offset"],
                since_ms=epoch_ms(row["found_at"]),
            )
        )
    return tuple(found)
