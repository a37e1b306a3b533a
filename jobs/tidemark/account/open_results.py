"""The oldest result of a table, or of time itself, that is not visible yet, with its account until now.

A record is open where a batch has read it and not shown it, where a plan left it behind, where a setting or a slower
partition holds it, or where nobody looks. A window is open where time has not passed its end: it waits for the slowest
partition. Behind a hop the search goes on in the stream that writes it, unless the hop has what its reader lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from tidemark.account.facts import BATCHES, READS, RESULTS, AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners.absence import ABSENCE
from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.broker import BROKER
from tidemark.account.owners.interval import INTERVAL
from tidemark.account.owners.max_drift import MAX_DRIFT
from tidemark.account.owners.pause import PAUSE
from tidemark.account.owners.trigger import TRIGGER
from tidemark.account.owners.window import WINDOW
from tidemark.account.recorded import Recorded
from tidemark.account.records import record_parts
from tidemark.account.unfinished import OPEN, RUNNING, open_parts, until_now
from tidemark.account.warehouse import AccountTables
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.liveness import drivers_of
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.topology import SubTopology
from tidemark.semantics.idleness import Activity
from tidemark.semantics.liveness import HAS_DRIVER, Liveness
from tidemark.semantics.quantiles import MEDIAN, rank
from tidemark.semantics.strategy import Strategy

_WAITS = (TRIGGER, BROKER)
"""Segments before a batch: a wait for the trigger, and looks."""


@dataclass(frozen=True, kw_only=True)
class OpenResult:
    """A result that is not visible yet: PARTS until now of `result` 0, and its age, ms."""

    parts: pl.DataFrame
    age_ms: int


@dataclass(frozen=True)
class OpenResults:
    """What is open at *at_ms* in the streams of a topology, by their *ledger*."""

    tables: AccountTables
    recorded: Recorded
    ledger: Ledger
    at_ms: int

    def of_table(self, places: list[str]) -> OpenResult | None:
        """Returns the oldest result that the operators *places* have not shown yet; None: nothing is open."""
        topology = self.tables.topology
        for place in places:
            sub = topology.sub_topology_of(place)
            held = self._held(place)
            if held is not None:
                return held
            holder = next((o for o in topology.path_into(place) if waits_for_time(o)), None)
            if holder is not None:
                return self.of_time(topology.sub_topology_of(holder.name), end_ms=self._next_end_ms(holder))
            found = self._record(sub, place, [place])
            if found is not None:
                return found
        return None

    def of_time(self, sub: SubTopology, end_ms: int | None = None) -> OpenResult | None:
        """Returns the account of the instant *end_ms*, which time has not passed in *sub*; None: it has.

        Without it, that of the instant at which time stands.
        """
        stands_ms = self._watermark_ms(sub)
        if end_ms is None:
            if stands_ms is None:
                return None
            end_ms = stands_ms + 1
        elif stands_ms is not None and stands_ms >= end_ms:
            return None
        hop = _hop_of(sub)
        if hop is not None:
            writer = self.tables.topology.sub_topology(hop.upstream)
            passed = self._passed_in(writer, hop, end_ms)
            return self._unread_mark(sub, passed, end_ms) if passed is not None else self.of_time(writer, end_ms)
        return self._slow_partition(sub, end_ms)

    # Records

    def _record(self, sub: SubTopology, place: str, shown_at: list[str]) -> OpenResult | None:
        """Returns the oldest record that *sub* has not shown yet, or a stream before it."""
        stream = self._name(sub)
        hop = _hop_of(sub)
        if hop is not None:
            unread = self._unread_of(sub, hop)
            if unread is None:
                writer = self.tables.topology.sub_topology(hop.upstream)
                return self._record(writer, hop.repartition, shown_at)
            return self._walked(sub, place, unread)
        found = self._drifting(sub, place)
        if found is not None:
            return found
        began_ms = self._batch_that_runs(stream)
        left = self._left(stream)
        if left is not None:
            return self._walked(sub, place, left)
        if began_ms is None and not self._is_absent(sub):
            return None
        looked_ms = self._last_look_ms(stream) if began_ms is None else began_ms
        if looked_ms is None:
            return None
        source = next(o for o in sub.sources if o.name not in sub.table_inputs())
        # What came after the last look is not known to be silence: it is taken to have come as it did before.
        event_ms, delay_ms = self._next_record(stream, shown_at, looked_ms)
        if began_ms is None:
            looked_ms = min(self.at_ms, max(looked_ms, event_ms + delay_ms))
        event_ms = min(event_ms, looked_ms)
        return self._walked(sub, place, {"input": source.name, "event_ms": event_ms, "arrived_ms": looked_ms})

    def _walked(self, sub: SubTopology, place: str, read: dict[str, Any], **held: object) -> OpenResult | None:
        """Returns the account of a record, *read* as in READS, as that of a result of the batch that comes next."""
        stream = self._name(sub)
        driver = self._newest_driver(stream)
        if driver is None:
            return None
        facts, batch_id = self.facts, read.get("batch_id", self._next_batch(stream))
        now_boot_ms = self.at_ms - driver["to_reference_ms"]
        row = {"stream": stream, "batch_id": batch_id, "row": 0, "n": 1, "in_transaction": False, **read}
        result = {
            "stream": stream, "batch_id": self._next_batch(stream), "driver": driver["driver"], "place": place, "row": 0,
            "visible_ms": self.at_ms, "visible_boot_ms": now_boot_ms, "read_batch": batch_id, "input": row["input"],
            "partition": row.get("partition"), "read_row": row["row"], "event_ms": row["event_ms"], "n": 1, **held,
        }  # fmt: skip
        if "batch_id" not in read:
            looked_ms = (
                max(row.get("arrived_ms") or 0, self._batch_that_runs(stream) or self.at_ms) - driver["to_reference_ms"]
            )
            batch = {
                "stream": stream, "batch_id": batch_id, "driver": driver["driver"], "host": driver["host"],
                "wall_ms": looked_ms + driver["to_reference_ms"], "boot_ms": looked_ms, "looked_ms": looked_ms,
            }  # fmt: skip
            facts = replace(
                facts,
                reads=pl.concat([facts.reads, pl.DataFrame([row], schema=READS)]),
                batches=pl.concat([facts.batches, pl.DataFrame([batch], schema=BATCHES)]),
            )
        results = pl.DataFrame([result], schema=RESULTS)
        parts = record_parts(Ledger.of(facts), results)
        return OpenResult(parts=parts, age_ms=self.at_ms - int(row["event_ms"]))

    def _unread_of(self, sub: SubTopology, hop: HopSource) -> dict[str, Any] | None:
        """Returns the first row that the writer of *hop* has shown and *sub* has not; None: there is none."""
        stream, writer = self._name(sub), f"{self.tables.topology.name}/{hop.upstream}"
        taken = self.facts.plans.filter(pl.col("stream") == stream, pl.col("input") == hop.repartition)[
            "until_offset"
        ].max()
        shown = self.facts.results.filter(
            pl.col("stream") == writer, pl.col("place") == hop.repartition, pl.col("batch_id") >= (taken or 0)
        )
        if shown.is_empty():
            return None
        first = shown.sort("batch_id", "event_ms").row(0, named=True)
        return {
            "input": hop.repartition, "event_ms": first["event_ms"], "writer": writer, "writer_place": hop.repartition,
            "writer_batch": first["batch_id"], "writer_row": first["row"],
        }  # fmt: skip

    def _left(self, stream: str) -> dict[str, Any] | None:
        """Returns the oldest record that the newest plan of a partition left behind; None: none did."""
        plans = self.facts.plans.filter(pl.col("stream") == stream, pl.col("writer").is_null()).sort("batch_id")
        newest = plans.group_by("input", "partition", maintain_order=True).last()
        behind = newest.filter(pl.col("latest_offset") > pl.col("until_offset")).sort("newest_ms")
        if behind.is_empty():
            return None
        plan = behind.row(0, named=True)
        of_partition = plans.filter(pl.col("input") == plan["input"], pl.col("partition").eq_missing(plan["partition"]))
        saw = of_partition.filter(pl.col("latest_offset") > plan["until_offset"]).row(0, named=True)
        event_ms = plan["newest_ms"]
        if event_ms is None:
            return None
        looked = self.ledger.batches.filter(pl.col("stream") == stream, pl.col("batch_id") == saw["batch_id"])
        return {
            "input": plan["input"], "partition": plan["partition"], "event_ms": event_ms, "left_by": saw["batch_id"],
            "arrived_ms": next(iter(looked["looked_ms"]), None),
        }  # fmt: skip

    def _drifting(self, sub: SubTopology, place: str) -> OpenResult | None:
        """Returns the oldest record that was read and waits for a slower partition; None: none does."""
        stream = self._name(sub)
        if self.tables.topology.max_drift_ms is None:
            return None
        plans = self.facts.plans.filter(pl.col("stream") == stream).sort("batch_id")
        newest = plans.group_by("input", "partition", maintain_order=True).last().drop_nulls("newest_ms")
        reads = self.facts.reads.filter(pl.col("stream") == stream).drop("batch_id_right", strict=False)
        waiting = (
            reads.join(newest.select("input", "partition", passed_ms="newest_ms"), on=["input", "partition"])
            .filter(pl.col("newest_ms") > pl.col("passed_ms"))
            .sort("event_ms")
        )
        if waiting.is_empty():
            return None
        read, slow = waiting.row(0, named=True), newest.sort("newest_ms").row(0, named=True)
        held = self._hold(stream, read, None, MAX_DRIFT, f"{slow['input']}/{slow['partition']}")
        return self._walked(sub, place, read, **held)

    def _held(self, place: str) -> OpenResult | None:
        """Returns the first record of a place without a result that a setting holds; None: none does."""
        topology = self.tables.topology
        if self.facts.results.filter(pl.col("place") == place).height:
            return None
        for operator in topology.path_into(place):
            owner = _holding_setting(operator)
            sub = topology.sub_topology_of(operator.name)
            reads = self.facts.reads.filter(pl.col("stream") == self._name(sub)).sort("batch_id", "event_ms")
            if owner is None or reads.is_empty():
                continue
            read = reads.row(0, named=True)
            if owner == ALLOWED_LATENESS:
                windows = operator.windows
                assert windows is not None
                end_ms = _end_ms(windows, read["event_ms"])
                return self._held_window(sub, operator.name, end_ms, windows.allowed_lateness_ms)
            return self._walked(
                sub, place, read, **self._hold(self._name(sub), read, operator.name, owner, operator.name)
            )
        return None

    def _hold(
        self, stream: str, read: dict[str, Any], operator: str | None, owner: str, detail: str
    ) -> dict[str, object]:
        """Returns what a result says of the setting that holds it: from the end of its operator until now."""
        segments = self.facts.segments.filter(pl.col("stream") == stream, pl.col("batch_id") == read["batch_id"])
        own = (
            segments.filter(pl.col("detail") == operator)
            if operator
            else segments.filter(pl.col("owner") == "operator").head(1)
        )
        ends = own["ended_ms" if operator else "began_ms"]
        return {"held_by": owner, "held_detail": detail, "held_from_ms": ends.max(), "due_ms": self.at_ms}

    # Time

    def _held_window(self, sub: SubTopology, operator: str, end_ms: int, allowed_ms: int) -> OpenResult:
        until_ms = min(self.at_ms, end_ms + allowed_ms)
        row = {
            "result": 0, "owner": ALLOWED_LATENESS, "detail": operator, "stream": self._name(sub),
            "ended_ms": until_ms, "ms": until_ms - end_ms, "error_ms": 0,
        }  # fmt: skip
        from tidemark.account.steps import PARTS

        return OpenResult(parts=pl.DataFrame([row], schema=PARTS), age_ms=self.at_ms - end_ms)

    def _slow_partition(self, sub: SubTopology, end_ms: int) -> OpenResult | None:
        """Returns the account of an instant that the slowest partition of *sub* has not passed.

        None: all its partitions are silent alike, so that no one of them holds time back.
        """
        stream = self._name(sub)
        driver = self._newest_driver(stream)
        slow = self._slowest(sub)
        if driver is None or slow is None:
            return None
        runs_ms = self._batch_that_runs(stream)
        waited_ms = runs_ms if runs_ms is not None else self._last_look_ms(stream)
        if waited_ms is None or (slow["is_alike"] and runs_ms is None and not self._is_absent(sub)):
            return None
        now_boot_ms = self.at_ms - driver["to_reference_ms"]
        row = {
            "stream": stream, "driver": driver["driver"], "input": slow["input"], "partition": slow["partition"],
            "start_ms": end_ms, "waited_until_ms": waited_ms, "bound_ms": slow["bound_ms"], "late_ms": slow["late_ms"],
            "visible_ms": self.at_ms, "visible_boot_ms": now_boot_ms,
        }  # fmt: skip
        parts = open_parts(Ledger.of(self.facts), pl.DataFrame([row], schema=OPEN))
        return OpenResult(parts=parts, age_ms=self.at_ms - end_ms)

    def _slowest(self, sub: SubTopology) -> dict[str, Any] | None:
        """Returns the partition of *sub* that holds time back, and how late its newest record arrived.

        It is alike if no other partition is ahead of it by more than records usually are apart.
        """
        stream = self._name(sub)
        rows = self.facts.plans.filter(pl.col("stream") == stream).drop_nulls("newest_ms").sort("batch_id")
        partitions = rows.group_by("input", "partition", maintain_order=True).last()
        bounds = self.facts.bounds.filter(pl.col("stream") == stream)
        awake = partitions.join(self._idle(sub), on=["input", "partition"], how="anti", nulls_equal=True).join(
            bounds, on="input"
        )
        if awake.is_empty():
            return None
        awake = awake.with_columns(reached_ms=pl.col("newest_ms") - pl.col("bound_ms")).sort(
            "reached_ms", "input", "partition"
        )
        slow = awake.row(0, named=True)
        own = rows.filter(
            pl.col("input") == slow["input"], pl.col("partition").eq_missing(slow["partition"]), pl.col("n") > 0
        )
        spacing_ms = _median(own["newest_ms"].diff().drop_nulls())
        reads = self.facts.reads.filter(
            pl.col("stream") == stream,
            pl.col("input") == slow["input"],
            pl.col("partition").eq_missing(slow["partition"]),
        ).sort("batch_id", "event_ms")
        late_ms = next(iter((reads["arrived_ms"] - reads["event_ms"]).tail(1)), None) or 0
        ahead_ms = awake["reached_ms"].max() - slow["reached_ms"]  # type: ignore[operator]
        return {**slow, "late_ms": late_ms, "is_alike": ahead_ms <= spacing_ms}

    def _idle(self, sub: SubTopology) -> pl.DataFrame:
        """Returns `input` and `partition` of partitions for which time does not wait."""
        marks = self.recorded.partition_batches.filter(
            pl.col("sub_topology") == sub.name, pl.col("partition").is_not_null(), pl.col("activity").is_not_null()
        ).sort("batch_id")
        newest = marks.group_by("source", "partition", maintain_order=True).last()
        idle = newest.filter(pl.col("activity") == Activity.IDLE.value)
        return idle.select(input="source", partition=pl.col("partition").cast(pl.Int64))

    def _passed_in(self, writer: SubTopology, hop: HopSource, end_ms: int) -> dict[str, Any] | None:
        """Returns the first mark of *hop* with which time passed *end_ms* in its *writer*; None: it has not."""
        marks = self.facts.marks.filter(
            pl.col("stream") == self._name(writer), pl.col("place") == hop.repartition, pl.col("watermark_ms") >= end_ms
        )
        return None if marks.is_empty() else marks.sort("batch_id").row(0, named=True)

    def _unread_mark(self, sub: SubTopology, passed: dict[str, Any], end_ms: int) -> OpenResult | None:
        """Returns the account of an instant that the writer of a hop has passed, and its reader *sub* has not."""
        stream = self._name(sub)
        driver = self._newest_driver(stream)
        if driver is None:
            return None
        row = {
            "stream": stream, "driver": driver["driver"], "input": passed["place"], "start_ms": end_ms,
            "waited_until_ms": passed["visible_ms"], "bound_ms": 0, "visible_ms": self.at_ms,
            "visible_boot_ms": self.at_ms - driver["to_reference_ms"],
        }  # fmt: skip
        parts = open_parts(Ledger.of(self.facts), pl.DataFrame([row], schema=OPEN))
        return OpenResult(parts=parts, age_ms=self.at_ms - end_ms)

    def _watermark_ms(self, sub: SubTopology) -> int | None:
        rows = self.recorded.batches.filter(pl.col("sub_topology") == sub.name).drop_nulls("watermark").sort("batch_id")
        return next(iter(rows.tail(1).select(pl.col("watermark").dt.epoch("ms")).to_series()), None)

    def _next_end_ms(self, holder: Operator) -> int | None:
        """Returns the end of the first window of *holder* that time has not passed; None: it has had no record."""
        windows, sub = holder.windows, self.tables.topology.sub_topology_of(holder.name)
        assert windows is not None
        stands_ms = self._watermark_ms(sub)
        if stands_ms is None:
            events = self.facts.reads.filter(pl.col("stream") == self._name(sub))["event_ms"]
            return _end_ms(windows, int(events.min())) if events.len() else None  # type: ignore[arg-type]
        return stands_ms + 1 + (windows.offset_ms + windows.size_ms - stands_ms - 1) % windows.hop_ms

    # Streams

    @cached_property
    def facts(self) -> AccountFacts:
        """What is known, and what each stream does now."""
        return until_now(self.ledger.facts, pl.DataFrame([*self._running()], schema=RUNNING))

    def _running(self) -> Iterator[dict[str, Any]]:
        for sub in self.tables.topology.sub_topologies:
            stream = self._name(sub)
            driver = self._newest_driver(stream)
            if driver is None:
                continue
            owner, detail = self._owner_now(sub)
            now_ms = self.at_ms - driver["to_reference_ms"]
            yield {"stream": stream, "driver": driver["driver"], "owner": owner, "detail": detail, "now_ms": now_ms}

    def _owner_now(self, sub: SubTopology) -> tuple[str, str]:
        """Returns whose the time of *sub* is now: the segment that its newest heartbeat names, unless it is gone."""
        stream, word = self._name(sub), self.drivers[sub.name].liveness
        if word not in HAS_DRIVER or word is Liveness.STARTING:
            return ABSENCE, stream
        if word is Liveness.STUCK and self.drivers[sub.name].is_silent:
            return PAUSE, stream
        segments = self.ledger.facts.segments.filter(pl.col("stream") == stream).sort("driver", "ended_ms")
        last = segments.tail(1).select("owner", "detail").rows()
        return last[0] if last else (ABSENCE, stream)

    def _is_absent(self, sub: SubTopology) -> bool:
        """Returns True if nobody looks for records of *sub* now."""
        return self._owner_now(sub)[0] in {ABSENCE, PAUSE}

    @cached_property
    def drivers(self) -> dict[str, HeartbeatFacts]:
        return drivers_of(self.tables.layout, self.tables.topology, at_ms=self.at_ms, stored=self.tables.stored)

    def _name(self, sub: SubTopology) -> str:
        return f"{self.tables.topology.name}/{sub.name}"

    def _newest_driver(self, stream: str) -> dict[str, Any] | None:
        """Returns the clock of the stream's newest driver."""
        drivers = self.ledger.clocks.filter(pl.col("stream") == stream).sort("driver")
        return drivers.row(-1, named=True) if drivers.height else None

    def _next_batch(self, stream: str) -> int:
        batches = self.ledger.facts.batches.filter(pl.col("stream") == stream)["batch_id"]
        return int(batches.max()) + 1 if batches.len() else 0  # type: ignore[arg-type]

    def _batch_that_runs(self, stream: str) -> int | None:
        """Returns the look that found the records of a batch that is not decided, reference; None: no batch runs."""
        newest = self._next_batch(stream)
        rows = self._placed_segments(stream).filter(pl.col("batch_id") >= newest)
        work = rows.filter(~pl.col("owner").is_in(_WAITS))
        if work.is_empty():
            return None
        looks = rows.filter(pl.col("owner") == BROKER, pl.col("ended_ms") <= work["began_ms"].min())
        return int((looks if looks.height else work)["ended_ms" if looks.height else "began_ms"].max())  # type: ignore[arg-type]

    def _last_look_ms(self, stream: str) -> int | None:
        """Returns when the stream looked for records last, reference."""
        looks = self._placed_segments(stream).filter(pl.col("owner") == BROKER)
        return int(looks["ended_ms"].max()) if looks.height else None  # type: ignore[arg-type]

    def _placed_segments(self, stream: str) -> pl.DataFrame:
        segments = self.ledger.facts.segments.filter(pl.col("stream") == stream)
        clocks = self.ledger.clocks.select("stream", "driver", "to_reference_ms")
        return segments.join(clocks, on=["stream", "driver"]).with_columns(
            pl.col("began_ms", "ended_ms") + pl.col("to_reference_ms")
        )

    def _next_record(self, stream: str, places: list[str], looked_ms: int) -> tuple[int, int]:
        """Returns the event time of the next record at *places*, and its delay, if it comes as those before it did."""
        shown = self.ledger.facts.results.filter(pl.col("place").is_in(places))
        newest = shown.group_by("batch_id").agg(pl.max("event_ms")).sort("batch_id")["event_ms"].cum_max()
        reads = self.ledger.facts.reads.filter(pl.col("stream") == stream)
        delay_ms = _median((reads["arrived_ms"] - reads["event_ms"]).drop_nulls())
        if newest.is_empty():
            return looked_ms, delay_ms
        return int(newest[-1]) + _median(newest.diff().drop_nulls()), delay_ms


def _median(lengths: pl.Series) -> int:
    """Returns the median of some lengths; of none it is 0."""
    return int(lengths.sort()[rank(lengths.len(), MEDIAN)]) if lengths.len() else 0


def _hop_of(sub: SubTopology) -> HopSource | None:
    leading = [o for o in sub.sources if o.name not in sub.table_inputs()]
    return next((o for o in leading if isinstance(o, HopSource)), None)


def waits_for_time(operator: Operator) -> bool:
    return isinstance(operator, Aggregate) and operator.emission.strategy is Strategy.ON_WINDOW_CLOSE


def _holding_setting(operator: Operator) -> str | None:
    """Returns the owner of the time for which *operator* holds results by its settings; None: for none."""
    if operator.emission is not None and operator.emission.strategy is Strategy.PERIODIC:
        return INTERVAL
    if not waits_for_time(operator) or operator.windows is None:
        return None
    if operator.windows.allowed_lateness_ms:
        return ALLOWED_LATENESS
    return WINDOW if operator.windows.shape == "session" else None


def _end_ms(windows: Any, event_ms: int) -> int:
    """Returns the end of the first window that a record of *event_ms* is in."""
    newest_start_ms = event_ms - (event_ms - windows.offset_ms) % windows.hop_ms
    overlapping = -(-windows.size_ms // windows.hop_ms) - 1
    return newest_start_ms - overlapping * windows.hop_ms + windows.size_ms
