"""Facts of a simulated life as drivers store them: counted by `kernels.records.read_ages`, and read back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

import polars as pl
from reference.lives import BASE_MS, Life, Row

from tidemark.account import facts as frames
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import batches_of, begun_of
from tidemark.account.stored import STORED_READS, STORED_RESULTS, reads_of, results_of
from tidemark.kernels.records.read_ages import (
    FIRSTS,
    LOOKS,
    OPEN_SPANS,
    PLANS,
    READS,
    RESULTS,
    SOURCE_RECORDS,
    WRITTEN_RECORDS,
    first_records,
    results_by_row,
    source_reads,
    written_reads,
)

COUNTED = {"reads", "firsts", "results", "looks"}
"""Frames of a life that are stored in lists, or are needed for that."""
HOLD = ["held_by", "held_detail", "held_from_ms", "due_ms"]
"""What a driver does not store of a result: it follows from the operator that held it."""
of_batch = itemgetter("stream", "batch_id")
of_partition = itemgetter("stream", "input", "partition")
of_writer = itemgetter("writer", "writer_batch", "writer_place", "writer_row")
of_read = itemgetter("stream", "read_batch", "input", "partition", "read_row")


def facts_of(rows: dict[str, list[Row]]) -> AccountFacts:
    """Returns *rows* by frame as frames."""
    return AccountFacts(
        **{name: pl.DataFrame(of_frame, schema=getattr(frames, name.upper())) for name, of_frame in rows.items()}
    )


def stored_facts(life: Life) -> tuple[AccountFacts, list[list[int]]]:
    """Returns the facts of *life* as they were stored, and for each of their results those of `life.results` in it."""
    stored = _Stored(life)
    for batch in life.rows["batches"]:
        stored.count(batch)
    facts = facts_of({name: rows for name, rows in life.rows.items() if name not in COUNTED})
    stored_reads = _stored(stored.reads, STORED_READS, reads=READS, firsts=FIRSTS)
    reads, firsts = reads_of(stored_reads, batches_of(facts), begun_of(facts))
    results = results_of(_stored(stored.results, STORED_RESULTS, results=RESULTS), stored_reads)
    kinds = {name: frames.RESULTS[name] for name in HOLD}
    holds = pl.DataFrame(
        [{name: life.rows["results"][of_row[0]][name] for name in HOLD} for of_row in stored.members], schema=kinds
    )
    results = results.with_columns(holds)
    return AccountFacts(**{**vars(facts), "reads": reads, "firsts": firsts, "results": results}), stored.members


class _Stored:
    """What the batches of a life stored.

    Attributes:
        reads: rows of `partition_batches`.
        results: rows of `operator_batches`.
        members: the numbers of the results in each row of a list of `results`.
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self.reads: list[Row] = []
        self.results: list[Row] = []
        self.members: list[list[int]] = []
        self._read = _grouped(life.rows.get("reads", []), itemgetter("stream", "batch_id", "input", "partition"))
        self._made = _grouped(enumerate(life.rows.get("results", [])), lambda made: of_batch(made[1]))
        self._planned = _grouped(life.rows["plans"], of_batch)
        self._plans = _grouped(life.rows["plans"], of_partition)
        self._looks = _grouped(life.rows["looks"], of_partition)
        self._windows = _grouped(life.rows.get("windows", []), of_batch)
        self._bounds = {(row["stream"], row["input"]): row["bound_ms"] for row in life.rows["bounds"]}
        self._inputs = {
            (name, source.name): source for name, stream in life.streams.items() for source in stream.inputs
        }
        self._reads_of_stream: dict[str, int] = defaultdict(int)
        self._row_of_read: dict[tuple[Any, ...], int] = {}
        self._row_of_result: dict[tuple[Any, ...], int] = {}
        self._arrived_ms: dict[tuple[Any, ...], int | None] = {}

    def count(self, batch: Row) -> None:
        """Counts what a batch read and made visible."""
        for plan in self._planned[of_batch(batch)]:
            read = (*of_batch(batch), plan["input"], plan["partition"])
            lists, numbers = self._count_reads(batch, plan, self._read[read])
            first = self._reads_of_stream[batch["stream"]]
            self._row_of_read |= {(*read, n): first + row for n, row in enumerate(numbers)}
            self._reads_of_stream[batch["stream"]] += len(lists["reads"])
            stored = {"decided_at_ms": batch["wall_ms"], "first_read": first}
            self.reads.append({**plan, **self._writer(plan), **stored, **lists})
        for place, made in groupby(self._made[of_batch(batch)], key=lambda each: each[1]["place"]):
            self._count_results(batch, place, list(made))

    def _writer(self, plan: Row) -> Row:
        writer = self._inputs[plan["stream"], plan["input"]].writer
        return {"writer": writer.name, "writer_place": plan["input"]} if writer else {}

    def _count_reads(self, batch: Row, plan: Row, rows: list[Row]) -> tuple[Row, pl.Series]:
        source, decided_at_ms = self._inputs[plan["stream"], plan["input"]], batch["wall_ms"]
        partition = plan["partition"] or 0
        places = [(partition, plan["from_offset"] + n, row["event_ms"]) for n, row in enumerate(rows)]
        if source.writer:
            origins = [self._row_of_result[of_writer(row)] for row in rows]
            written = [(row["writer_batch"], origin) for row, origin in zip(rows, origins, strict=True)]
            if source.is_hop:
                places = [(partition, row["writer_batch"], row["event_ms"]) for row in rows]
            records = _frame([(*place, *by) for place, by in zip(places, written, strict=True)], WRITTEN_RECORDS)
        else:
            arrived_ms = [None if source.created_ms else row["arrived_ms"] for row in rows]
            self._arrived_ms |= {
                (*of_batch(batch), source.name, partition, n): at_ms for n, at_ms in enumerate(arrived_ms)
            }
            records = _frame([(*place, at_ms) for place, at_ms in zip(places, arrived_ms, strict=True)], SOURCE_RECORDS)
        known = {} if source.is_hop else self._known(batch, plan)
        count = written_reads if source.writer else source_reads
        reads, numbers = count(records, decided_at_ms, **known)
        firsts = [] if source.is_hop else self._firsts(batch, plan, records, known)
        return {"reads": reads.to_dicts(), "firsts": firsts}, numbers

    def _before(self, batch: Row, plan: Row) -> list[Row]:
        return [each for each in self._plans[of_partition(plan)] if each["batch_id"] < batch["batch_id"]]

    def _known(self, batch: Row, plan: Row) -> dict[str, pl.DataFrame]:
        partition, looks = plan["partition"], self._looks[of_partition(plan)]
        left = [(partition, each["latest_offset"], each["batch_id"]) for each in self._before(batch, plan)]
        spans = [(partition, look["stable_offset"], look["until_offset"]) for look in looks]
        known = {
            "plans": _frame(left, PLANS),
            "open_spans": _frame([span for span in spans if span[1] < span[2]], OPEN_SPANS),
        }
        if self._inputs[plan["stream"], plan["input"]].created_ms:
            seen = [
                (partition, look["until_offset"], batch["looked_ms"] - look["looked_ms"])
                for look in looks
                if look["driver"] == batch["driver"] and look["looked_ms"] <= batch["looked_ms"]
            ]
            known["looks"] = _frame(seen, LOOKS)
        return known

    def _firsts(self, batch: Row, plan: Row, records: pl.DataFrame, known: dict[str, pl.DataFrame]) -> list[Row]:
        bound_ms = self._bounds[plan["stream"], plan["input"]]
        ends_ms = [row["end_ms"] for row in self._windows[of_batch(batch)]]
        instants_ms = [end_ms + bound_ms for end_ms in ends_ms if (end_ms - BASE_MS) % self._life.every_ms == 0]
        newest_ms = [(plan["partition"], each["newest_ms"]) for each in self._before(batch, plan)[-1:]]
        return first_records(
            records,
            pl.Series(instants_ms, dtype=pl.Int64()),
            _frame(newest_ms, pl.Schema({"partition": pl.Int32(), "newest_ms": pl.Int64()})).drop_nulls(),
            batch["wall_ms"],
            **known,
        ).to_dicts()

    def _count_results(self, batch: Row, place: str, made: list[tuple[int, Row]]) -> None:
        results = [
            (self._row_of_read[of_read(row)], row["event_ms"], self._arrived_ms.get(of_read(row))) for _, row in made
        ]
        schema = pl.Schema({"row": pl.Int64(), "event_ms": pl.Int64(), "arrived_ms": pl.Int64()})
        stored = results_by_row(_frame(results, schema), batch["wall_ms"])
        members: dict[int, list[int]] = {row: [] for row in stored["row"]}
        for (number, result), (row, *_) in zip(made, results, strict=True):
            members[row].append(number)
            self._row_of_result[(*of_batch(batch), place, result["row"])] = row
        self.members += members.values()
        self.results.append(made[0][1] | {"decided_at_ms": batch["wall_ms"], "results": stored.to_dicts()})


def _grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def _frame(rows: list[tuple[Any, ...]], schema: pl.Schema) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


def _stored(rows: list[Row], schema: pl.Schema, **lists: pl.Schema) -> pl.DataFrame:
    kinds = {**schema, **{name: pl.List(pl.Struct(fields)) for name, fields in lists.items()}}
    return pl.DataFrame(rows, schema=kinds)
