"""What the Delta tables of one sub-topology said at an instant (ring 2).

A batch counts from its `finished_at` on, which is written with the last of its tables, and a heartbeat from its `at`
on. Instants in the frames are epoch ms.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import polars.selectors as cs
from deltalake import DeltaTable

from tidemark.control import ALIVE, Control, Heartbeat, StreamState
from tidemark.delta import scan
from tidemark.kernels.restarts import Restart, restarts
from tidemark.kernels.schemas import arrow_schema
from tidemark.semantics.idleness import Activity
from tidemark.spec.tables import (
    BATCHES,
    CHANGES,
    HEARTBEATS,
    HOP,
    LATE_RECORDS,
    OPERATOR_LATENCY,
    OPERATOR_STATE,
    OPERATOR_WINDOWS,
    OUTCOMES,
    QUARANTINE,
    WATERMARKS,
    Table,
)
from tidemark.spec.topology import SubTopology
from tidemark.stream.unread import begun

LATELY = 5
"""Lately means: the last so many batches in which something came in."""

MISSED_MS = 3_000
"""A driver beats every second in its control folder; after so many ms without a beat its lease is looked at."""
BEATS_WITHIN_MS = 60_000
"""A driver that has not beaten for longer, four beats of 15 s, is dead."""
GAVE = pl.col("emitted") + pl.col("passed") + pl.col("repeated").fill_null(0)
"""Results that an operator sent on."""

_MEMORY = ("memory_bytes", "memory_free_bytes", "state_bytes")


@dataclass(frozen=True)
class Beat:
    """The newest heartbeat."""

    state: StreamState
    at_ms: int
    batch_started_at_ms: int | None
    reason: str | None
    is_gone: bool = False
    """Whether no driver holds the lease of the stream any more."""
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    state_bytes: int | None = None

    @property
    def is_short_of_memory(self) -> bool:
        """Whether less than a tenth of the memory that the driver may take is left."""
        if self.memory_bytes is None or self.memory_free_bytes is None:
            return False
        return self.memory_free_bytes * 9 < self.memory_bytes


@dataclass(frozen=True)
class Mark:
    """The newest watermark of a partition, of a source or of all; record times, and who holds it back."""

    watermark_ms: int | None
    max_timestamp_ms: int | None
    activity: Activity | None
    held_by: str | None


class StreamFacts:
    """The tables under *home* as they were at *at_ms*; a table that is not there has no rows.

    *control* is the control folder, *trigger_ms* the topology's.
    """

    def __init__(self, home: Path, control: Path, at_ms: int, trigger_ms: int) -> None:
        self._home, self.control, self.at_ms, self._trigger_ms = home, control, at_ms, trigger_ms

    @cached_property
    def beat(self) -> Beat | None:
        """The newest heartbeat: of every second from the control folder, or of every 15 s from the table."""
        kept = self._beats.tail(1).select("state", "at", "batch_started_at", "reason", *_MEMORY).rows()
        memory = dict(zip(_MEMORY, kept[0][4:], strict=True)) if kept else {}
        newest = Beat(StreamState(kept[0][0]), *kept[0][1:4], **memory) if kept else None
        live = self._live()
        if live is None or live.at_ms > self.at_ms or (newest and newest.at_ms > live.at_ms):
            return newest
        is_gone = live.state in ALIVE and self.at_ms - live.at_ms > MISSED_MS and not Control(self.control).is_held()
        began_ms = newest.batch_started_at_ms if newest else None
        return Beat(live.state, live.at_ms, began_ms, live.reason, is_gone, **memory)

    def _live(self) -> Heartbeat | None:
        """The newest heartbeat of the control folder; None, too, for a user who may not read it."""
        with suppress(PermissionError):
            return Control(self.control).heartbeat()
        return None

    @cached_property
    def started_ms(self) -> int:
        """When the newest driver first beat."""
        live = self._live()
        if live is not None and live.state is StreamState.STARTING and live.at_ms <= self.at_ms:
            return live.since_ms or live.at_ms
        of_newest = self._beats.filter(pl.col("epoch") == pl.col("epoch").max())["at"].min()
        return of_newest if isinstance(of_newest, int) else self.at_ms

    @cached_property
    def restart(self) -> Restart | None:
        """The newest restart that had begun, with its end even if that came later; None: there was none."""
        found = restarts(self._every_batch, self._every_beat, trigger_ms=self._trigger_ms)
        begun = [restart for restart in found if restart.from_ms <= self.at_ms]
        return begun[-1] if begun else None

    @cached_property
    def _every_beat(self) -> pl.DataFrame:
        """All that are known, also those of later."""
        return _scan(self._home / HEARTBEATS.name, HEARTBEATS).sort("at", "epoch").collect()

    @cached_property
    def _beats(self) -> pl.DataFrame:
        return self._every_beat.filter(pl.col("at") <= self.at_ms)

    def reading(self, sub: SubTopology) -> str:
        """What the driver of *sub* had begun to read and not decided, as part of a sentence; empty: nothing.

        Nothing is known, too, to a user who may not read the control folder.
        """
        with suppress(PermissionError):
            return begun(self.control, sub)
        return ""

    @cached_property
    def batches(self) -> pl.DataFrame:
        """The batches, oldest first."""
        return self._every_batch.filter(pl.col("finished_at") <= self.at_ms)

    @cached_property
    def worked_ms(self) -> int:
        """The newest sign of work of the driver: a batch that finished, or what its newest heartbeat says."""
        beats = self._beats.select(pl.coalesce("batch_started_at", "since", "at"))
        live = self._live()
        heard = [] if live is None or live.at_ms > self.at_ms else [live.since_ms or live.at_ms]
        kept = [*beats.to_series().tail(1), *self.batches["finished_at"].tail(1), *heard]
        return max(kept, default=self.at_ms)

    def finished_after(self, at_ms: int) -> bool:
        """Whether a batch finished after the heartbeat of *at_ms*, which is one of every 15 s."""
        return bool((self.batches["finished_at"] > at_ms).any())

    @cached_property
    def _every_batch(self) -> pl.DataFrame:
        """All that are known, also those of later."""
        columns = [
            "batch_id",
            "decided_at",
            "started_at",
            "finished_at",
            "duration_ms",
            "sources",
            "epoch",
            "records_in",
        ]
        return _scan(self._home / BATCHES.name, BATCHES).select(columns).sort("batch_id").collect()

    @cached_property
    def outcomes(self) -> pl.DataFrame:
        """What became of updates, by batch and operator, oldest first; `gave` is what was sent on."""
        found = self._rows(OUTCOMES).with_columns(gave=GAVE).join(self.batches, on="batch_id")
        return found.sort("batch_id", maintain_order=True)

    def of_operator(self, operator: str) -> pl.DataFrame:
        """The rows of `outcomes` about *operator*."""
        return self.outcomes.filter(pl.col("operator") == operator)

    def since_last_result(self, operator: str) -> pl.DataFrame:
        """The rows about *operator* of the batches after the newest one in which it had results."""
        rows = self.of_operator(operator)
        last = rows.filter(pl.col("gave") > 0)["batch_id"].max()
        return rows if last is None else rows.filter(pl.col("batch_id") > last)

    def lately(self, operator: str) -> pl.DataFrame:
        """The rows about *operator* of the last LATELY batches in which something came in."""
        return self.of_operator(operator).filter(pl.col("records_in") > 0).tail(LATELY)

    @cached_property
    def marks(self) -> dict[tuple[str | None, int | None], Mark]:
        """The newest watermark by source and partition; None and None: that of all."""
        newest = self._rows(WATERMARKS).sort("batch_id", maintain_order=True)
        newest = newest.unique(["source", "partition"], keep="last", maintain_order=True)
        rows = newest.select("source", "partition", "watermark", "max_timestamp", "activity", "held_by").iter_rows()
        return {
            (source, partition): Mark(watermark_ms, newest_ms, Activity(activity) if activity else None, held_by)
            for source, partition, watermark_ms, newest_ms, activity, held_by in rows
        }

    @cached_property
    def reads(self) -> pl.DataFrame:
        """By batch, source and partition: n read, `bad` of them, and `unread` (null: the broker was not asked).

        n counts offsets: where a topic has gaps, more than there were records.
        """
        parts = self.batches.explode("sources").filter(pl.col("sources").is_not_null()).unnest("sources")
        bad = self.quarantine.group_by("batch_id", "source", "partition").agg(bad=pl.len())
        return parts.join(bad, on=["batch_id", "source", "partition"], how="left", maintain_order="left").select(
            "batch_id",
            "source",
            "partition",
            "finished_at",
            "until_offset",
            n=pl.col("until_offset") - pl.col("from_offset"),
            unread=pl.col("latest_offset") - pl.col("until_offset"),
            bad=pl.col("bad").fill_null(0).cast(pl.Int64),
        )

    def of_partition(self, source: str, partition: int) -> pl.DataFrame:
        """The rows of `reads` about one partition."""
        return self.reads.filter(pl.col("source") == source, pl.col("partition") == partition)

    @cached_property
    def quarantine(self) -> pl.DataFrame:
        """Records that could not be used."""
        return self._rows(QUARANTINE)

    @cached_property
    def late_records(self) -> pl.DataFrame:
        """Records behind the watermark."""
        return self._rows(LATE_RECORDS)

    def latencies(self, operator: str) -> pl.DataFrame:
        """By batch and partition of the input: smallest latency of *operator*, ms, and how many were negative."""
        rows = self._rows(OPERATOR_LATENCY).filter(pl.col("operator") == operator)
        partition = pl.col("task_id").str.extract(r"_(\d+)$").cast(pl.Int64)
        return rows.select("batch_id", "min_ms", "negative_n", "finished_at", partition=partition)

    def key_ahead(self, partition: int, batches: pl.Series, *, by_more_than_ms: int) -> str | None:
        """A key whose newest change, of records of *partition*, lies so far ahead of its batch; None: none is known."""
        rows = self._rows(CHANGES).filter(
            pl.col("source_partition") == partition, pl.col("batch_id").is_in(batches.implode())
        )
        ahead = pl.col("timestamp") - pl.col("finished_at") > by_more_than_ms
        keys = rows.join(self.batches, on="batch_id").filter(ahead).sort("timestamp")["key"]
        return keys[-1] if keys.len() else None

    def busy(self) -> list[tuple[str, int, int]]:
        """Operators that used most of the trigger interval in the last LATELY batches that closed windows.

        For each its name, and medians in ms: of its work on a batch, and of whole batches, which took longer than
        a trigger. The one that worked longest comes first, of equal ones by name.
        """
        closing = self._rows(OPERATOR_WINDOWS).unique(["batch_id", "operator"])
        last = closing["batch_id"].unique().sort().tail(LATELY)
        works = closing.filter(pl.col("batch_id").is_in(last.implode())).join(self.batches, on="batch_id")
        medians = works.group_by("operator").agg(
            work_ms=(pl.col("ewt_at") - pl.col("started_at")).median(), batch_ms=pl.col("duration_ms").median()
        )
        too_long = (pl.col("work_ms") > self._trigger_ms / 2) & (pl.col("batch_ms") > self._trigger_ms)
        found = medians.filter(too_long).sort(-pl.col("work_ms"), "operator")
        return [(name, round(work_ms), round(batch_ms)) for name, work_ms, batch_ms in found.iter_rows()]

    def held_windows(self, operator: str) -> pl.DataFrame:
        """Windows whose results *operator* holds: key, window_start, window_end; batch_id is their newest update's."""
        states = _scan(self._home / OPERATOR_STATE.name, OPERATOR_STATE).filter(
            pl.col("operator") == operator, pl.col("batch_id") <= self._newest
        )
        columns = ["batch_id", "key", "held", "window_start", "window_end"]
        moved = states.select(columns).collect().sort("batch_id", maintain_order=True)
        return moved.unique("key", keep="last", maintain_order=True).filter("held").drop("held")

    def handed_on(self, repartition: str) -> int:
        """The newest batch that *repartition* handed something on in; -1: none."""
        hop = _scan(self._home / f"hop_{repartition}", HOP).filter(pl.col("batch_id") <= self._newest)
        newest = hop.select("batch_id").collect()["batch_id"].max()
        return newest if isinstance(newest, int) else -1

    @cached_property
    def _newest(self) -> int:
        found = self.batches["batch_id"].max()
        return found if isinstance(found, int) else -1

    def _rows(self, table: Table) -> pl.DataFrame:
        """The rows of batches that count."""
        found = _scan(self._home / table.name, table).filter(pl.col("batch_id") <= self._newest)
        return found.drop("topology", "sub_topology").collect()


def _scan(path: Path, table: Table) -> pl.LazyFrame:
    none = pl.DataFrame(arrow_schema(table).empty_table()).lazy()
    rows = scan(path) if DeltaTable.is_deltatable(str(path)) else none
    later = [
        pl.lit(None).cast(kind).alias(name)
        for name, kind in none.collect_schema().items()
        if name not in rows.collect_schema()
    ]
    return rows.with_columns(later).with_columns(cs.datetime().dt.epoch("ms"))
