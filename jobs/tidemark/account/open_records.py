"""Finds the oldest record on its way to a table, and the account of its age until now.

A record is on its way if a batch has read it and not written a row yet, if a plan left it behind, if a setting or a
slower partition holds it, or if nobody looks for records. Where a stream reads a hop, and has read all rows of it, the
search goes on in the stream that writes the hop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from tidemark.account.configured import holding_setting, hop_into
from tidemark.account.facts import BATCHES, READS, RESULTS
from tidemark.account.ledger import Ledger
from tidemark.account.now import StreamsNow
from tidemark.account.owners.allowed_lateness import ALLOWED_LATENESS
from tidemark.account.owners.max_drift import MAX_DRIFT
from tidemark.account.owners.window import WINDOW
from tidemark.account.records import record_parts
from tidemark.account.steps import PARTS
from tidemark.kernels.columns.quantiles import median_of
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.settings.windows import Shape, Windows
from tidemark.model.topology import SubTopology

Read = dict[str, Any]
"""A record that is on its way, with the columns of READS that are known of it."""


@dataclass(frozen=True)
class OpenResult:
    """A result that is not visible yet: the PARTS of its age until now, and that age, ms."""

    parts: pl.DataFrame
    age_ms: int


@dataclass(frozen=True)
class OpenRecords:
    """Records that are on their way `now`."""

    now: StreamsNow

    def before(self, operator: str) -> OpenResult | None:
        """Returns the oldest record on its way to *operator*; None if none is known to be."""
        return self._in_stream(self.now.topology.sub_topology_of(operator), operator, target=operator)

    def _in_stream(self, sub: SubTopology, operator: str, *, target: str) -> OpenResult | None:
        """Returns the oldest record that *sub*, or a stream before it, has on the way to its *operator*.

        The results of *target*, the operator at the end of the way, tell how new the records are that have arrived.
        """
        stream, hop = self.now.name(sub), hop_into(sub)
        if hop is not None:
            read = self._unread_row(stream, hop)
            if read is not None:
                return self._aged(stream, operator, read)
            writer = self.now.topology.sub_topology(hop.upstream)
            return self._in_stream(writer, hop.repartition, target=target)
        found = self._too_far_ahead(sub, operator)
        read = self._left_behind(stream) or self._unfinished(sub, target)
        return found or (None if read is None else self._aged(stream, operator, read))

    def _unread_row(self, stream: str, hop: HopSource) -> Read | None:
        """Returns the first row of *hop* that *stream* has not read; None if it has read all."""
        facts, writer = self.now.facts, f"{self.now.topology.name}/{hop.upstream}"
        plans = facts.plans.filter(pl.col("stream") == stream, pl.col("input") == hop.repartition)
        read_until = plans.select(pl.max("until_offset")).item() or 0
        unread = facts.results.filter(
            pl.col("stream") == writer, pl.col("place") == hop.repartition, pl.col("batch_id") >= read_until
        )
        if unread.is_empty():
            return None
        first = unread.sort("batch_id", "event_ms").row(0, named=True)
        return {
            "input": hop.repartition,
            "event_ms": first["event_ms"],
            "writer": writer,
            "writer_place": hop.repartition,
            "writer_batch": first["batch_id"],
            "writer_row": first["row"],
        }

    def _left_behind(self, stream: str) -> Read | None:
        """Returns the oldest record that the newest plans of *stream* left behind; None if they took all."""
        behind = self.now.left_behind(stream).drop_nulls("newest_ms").sort("newest_ms")
        if behind.is_empty():
            return None
        plan = behind.row(0, named=True)
        return {
            "input": plan["input"],
            "partition": plan["partition"],
            "event_ms": plan["newest_ms"],
            "left_by": plan["left_by"],
            "arrived_ms": plan["seen_ms"],
        }

    def _unfinished(self, sub: SubTopology, target: str) -> Read | None:
        """Returns the next record of *sub*, if the running batch has read it or nobody looks for it.

        None if somebody looks, and no record is known to be there. If nobody looks, the record is assumed to have come
        as regularly as the records before it (`_next_record`).
        """
        stream = self.now.name(sub)
        found_ms = self.now.running_look_ms(stream)
        has_found = found_ms is not None and not self.now.has_no_news(sub)
        if not has_found and not self.now.nobody_looks(sub):
            return None
        looked_ms = self.now.last_look_ms(stream, before_ms=found_ms if has_found else None)
        until_ms = found_ms if has_found and found_ms is not None else self.now.at_ms
        if looked_ms is None and not has_found:
            return None
        event_ms, delay_ms = self._next_record(stream, target, until_ms if looked_ms is None else looked_ms)
        if looked_ms is not None:
            # The last look did not see the record. So it came later, and nobody made it wait before that.
            event_ms = max(event_ms, looked_ms - delay_ms)
        arrived_ms = min(event_ms + delay_ms, until_ms)
        source = next(o for o in sub.sources if o.name not in sub.table_inputs())
        return {"input": source.name, "event_ms": min(event_ms, arrived_ms), "arrived_ms": arrived_ms}

    def _next_record(self, stream: str, target: str, looked_ms: int) -> tuple[int, int]:
        """Estimates the event time (epoch ms) and the delay (ms) of the record after the newest result of *target*.

        Records of *stream* usually follow each other by the median time between batches. Without a result, the event
        time is *looked_ms*.
        """
        facts = self.now.ledger.facts
        delays = facts.reads.filter(pl.col("stream") == stream).select(delay=pl.col("arrived_ms") - pl.col("event_ms"))
        delay_ms = int(delays.select(median_of(pl.col("delay"))).item() or 0)
        results = facts.results.filter(pl.col("place") == target)
        newest = (
            results.group_by("batch_id").agg(pl.max("event_ms")).sort("batch_id").select(pl.col("event_ms").cum_max())
        )
        if newest.is_empty():
            return looked_ms, delay_ms
        apart_ms = int(newest.select(median_of(pl.col("event_ms").diff())).item() or 0)
        return int(newest.item(-1, 0)) + apart_ms, delay_ms

    def _too_far_ahead(self, sub: SubTopology, operator: str) -> OpenResult | None:
        """Returns the oldest record that *sub* has read, and that waits for a slower partition; None if none waits."""
        stream, facts = self.now.name(sub), self.now.facts
        drifts = facts.drifts.filter(pl.col("stream") == stream)
        if drifts.is_empty():
            return None
        plans = facts.plans.filter(pl.col("stream") == stream).sort("batch_id")
        newest = plans.group_by("input", "partition", maintain_order=True).last().drop_nulls("newest_ms")
        passed = newest.select("input", "partition", passed_ms="newest_ms")
        batches = self.now.ledger.batches.select("stream", "batch_id", "to_reference_ms")
        waiting = (
            facts.reads.join(passed, on=["input", "partition"])
            .filter(pl.col("newest_ms") > pl.col("passed_ms"))
            .join(drifts, on=["stream", "batch_id", "input"])
            .join(batches, on=["stream", "batch_id"])
            .sort("event_ms")
        )
        slow = self.now.slowest(sub)
        if waiting.is_empty() or slow is None:
            return None
        read = waiting.row(0, named=True)
        if all(read[name] == slow[name] for name in ("input", "partition")):
            return None
        from_ms = read["from_ms"] + read["to_reference_ms"]
        until_then = self._aged(stream, operator, {name: read[name] for name in READS}, until_ms=from_ms)
        # From then on the record waits as a window does, but without the bound.
        since_then = self.now.parts_since(stream, from_ms, slow | {"waits_by": MAX_DRIFT, "bound_ms": 0})
        if until_then is None or since_then is None:
            return None
        return OpenResult(pl.concat([until_then.parts, since_then]), self.now.at_ms - int(read["event_ms"]))

    def held_by_setting(self, name: str) -> OpenResult | None:
        """Returns the first record on its way to an operator that never gave a result, if a setting holds the record.

        None if the operator *name* has given results, or if no setting holds the record.
        """
        topology, facts = self.now.topology, self.now.facts
        if facts.results.filter(pl.col("place") == name).height:
            return None
        for operator in topology.path_into(name):
            stream = self.now.name(topology.sub_topology_of(operator.name))
            reads = facts.reads.filter(pl.col("stream") == stream).sort("batch_id", "event_ms")
            setting = holding_setting(operator)
            # A record that waits for the end of a fixed window waits for the watermark (`open_time`).
            is_fixed = operator.windows is not None and operator.windows.shape is not Shape.SESSION
            if setting is None or (setting == WINDOW and is_fixed) or reads.is_empty():
                continue
            read = reads.row(0, named=True)
            if setting == ALLOWED_LATENESS and operator.windows is not None:
                return self._in_allowed_lateness(stream, operator.name, operator.windows, read["event_ms"])
            segments = facts.segments.filter(pl.col("stream") == stream, pl.col("batch_id") == read["batch_id"])
            ended_ms = segments.filter(pl.col("detail") == operator.name).select(pl.max("ended_ms")).item()
            return self._aged(stream, name, read, held_by=setting, held_detail=operator.name, held_from_ms=ended_ms)
        return None

    def _in_allowed_lateness(self, stream: str, operator: str, windows: Windows, event_ms: int) -> OpenResult:
        """Returns the account of the first window of *operator*, in which the record of *event_ms* lies.

        The window is sent only when `allowed_lateness` after its end has passed, and has waited for that until now.
        """
        end_ms = first_end_ms(windows, event_ms)
        until_ms = min(self.now.at_ms, end_ms + windows.allowed_lateness_ms)
        part = {
            "result": 0,
            "owner": ALLOWED_LATENESS,
            "detail": operator,
            "stream": stream,
            "ended_ms": until_ms,
            "ms": until_ms - end_ms,
            "error_ms": 0,
        }
        return OpenResult(pl.DataFrame([part], schema=PARTS), self.now.at_ms - end_ms)

    def _aged(
        self, stream: str, operator: str, read: Mapping[str, Any], *, until_ms: int | None = None, **held: object
    ) -> OpenResult | None:
        """Returns the account of a record as if the next batch made its result visible now; None without a driver.

        Args:
            stream: the stream that has the record.
            operator: the operator of that stream whose result it will be.
            read: the record. If no finished batch has read it, the next batch counts as the one that does.
            until_ms: an instant by the reference clock, instead of now.
            held: the columns of RESULTS about the setting that holds the record.
        """
        driver = self.now.driver(stream)
        if driver is None:
            return None
        at_ms, next_batch, facts = until_ms or self.now.at_ms, self.now.next_batch(stream), self.now.facts
        row = {"stream": stream, "batch_id": next_batch, "row": 0, "n": 1, "in_transaction": False, **read}
        if row["batch_id"] == next_batch:
            looked_ms = max(row.get("arrived_ms") or 0, self.now.running_look_ms(stream) or at_ms)
            boot_ms = looked_ms - driver["to_reference_ms"]
            batch = {"wall_ms": looked_ms, "boot_ms": boot_ms, "looked_ms": boot_ms, "host": driver["host"]}
            batch |= {"stream": stream, "driver": driver["driver"], "batch_id": next_batch}
            facts = replace(
                facts,
                reads=pl.concat([facts.reads, pl.DataFrame([row], schema=READS)]),
                batches=pl.concat([facts.batches, pl.DataFrame([batch], schema=BATCHES)]),
            )
        result = {
            "stream": stream,
            "batch_id": next_batch,
            "driver": driver["driver"],
            "place": operator,
            "row": 0,
            "visible_ms": at_ms,
            "visible_boot_ms": at_ms - driver["to_reference_ms"],
            "read_batch": row["batch_id"],
            "input": row["input"],
            "partition": row.get("partition"),
            "read_row": row["row"],
            "event_ms": row["event_ms"],
            "n": 1,
            "due_ms": at_ms if held else None,
            **held,
        }
        parts = record_parts(Ledger.of(facts), pl.DataFrame([result], schema=RESULTS))
        return OpenResult(parts, at_ms - int(row["event_ms"]))


def first_end_ms(windows: Windows, event_ms: int) -> int:
    """Returns the end of the first window that a record with the event time *event_ms* belongs to; both epoch ms."""
    after_start_ms = (event_ms - windows.offset_ms - windows.size_ms) % windows.hop_ms
    return event_ms - after_start_ms + windows.hop_ms
