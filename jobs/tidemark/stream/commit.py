"""Carries out what the journal says of a batch: commits its data, reads the clock, commits what was measured.

Order: changes, whose commit times the tables and aggregates that nobody reads; then what repartitions and sinks hand
out, in the order of the topology, each timed by its commit; then state and ledgers; then the facts, `batches` last;
then small files of a table may be put together. Every step is skipped where it was done before, so that a batch may be
carried out again from any point. The steps have names, at which tests stop a driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemark.clock import Clock
from tidemark.current_rows import OF_REPLACING
from tidemark.delta import KEPT_LOG, NOTHING, SHORT_LOG, Committer, Told, bigint_columns, create
from tidemark.disk import UntilWritten, at_once
from tidemark.files import Files, Rows, frames, write_file
from tidemark.kernels import payload
from tidemark.kernels.final_rows import final_columns
from tidemark.kernels.last_seen import last_seen_columns
from tidemark.kernels.marks import MARK, mark_text
from tidemark.kernels.schemas import INSTANT, UTC_TIMESTAMP, arrow_schema, instants
from tidemark.object_path import ObjectPath
from tidemark.spec.operators import Operator, Repartition, Sink, emission_of
from tidemark.spec.tables import (
    BATCHES,
    CHANGES,
    CLOCK_SKEW,
    DISORDER_BUCKETS,
    HEARTBEATS,
    HELD_RECORDS,
    HOP,
    LATE_RECORDS,
    OPERATOR_STATE,
    QUARANTINE,
    SUPPRESSED,
    TABLES,
    UNDELIVERABLE,
)
from tidemark.spec.topology import SubTopology
from tidemark.stream.broker import Broker
from tidemark.stream.journal import MANY, Entry, Journal
from tidemark.stream.limits import undeliverable_rows
from tidemark.stream.measurement import Clocks, Measurer
from tidemark.stream.open_windows import OpenWindows
from tidemark.stream.sink_columns import commented
from tidemark.stream.tidying import Tidying

NEWEST_BATCHES = "newest_batches"
"""A note of every entry of facts: per table, the newest batch that it has a commit of."""
LEDGERS = tuple(
    table.name for table in (OPERATOR_STATE, HELD_RECORDS, SUPPRESSED, LATE_RECORDS, QUARANTINE, DISORDER_BUCKETS)
)


class Committing:
    """Commits the batches of *sub* into its folder *home* of tables."""

    def __init__(
        self,
        sub: SubTopology,
        home: Path,
        committer: Committer,
        facts: Journal,
        measurer: Measurer,
        broker: Broker,
        clock: Clock,
        *,
        reached: Callable[[str], None] = lambda step: None,
        check_lease: Callable[[], None] = lambda: None,
        until_written: UntilWritten = at_once,
    ) -> None:
        self._until_written = until_written
        self._operators = {operator.name: operator for operator in sub.operators}
        self._home, self._committer, self._facts, self._measurer = home, committer, facts, measurer
        self._broker, self._clock, self._reached, self._check_lease = broker, clock, reached, check_lease
        self._handing_out = [o for o in sub.operators if isinstance(o, Repartition | Sink)]
        self._shown_by_changes = [
            o.name for o in sub.operators if o.name in sub.terminals() and emission_of(o) and o not in self._handing_out
        ]
        self._tidying, self._hops = Tidying(committer), frozenset(_hops(sub))
        newest = facts.newest()
        self._open_windows = OpenWindows(home)
        self._undeliverable: list[pl.DataFrame] = []
        self._newest_batches: dict[str, int] = dict(newest.notes.get(NEWEST_BATCHES, {})) if newest else {}

    def laid_out(self, entry: Entry) -> Entry:
        """*entry* with many rows laid into the folder of their table: written once, and not yet seen by anybody."""
        tables = {name: self._laid_out(name, entry) for name in entry.tables}
        if any(rows is not entry.tables[name] for name, rows in tables.items()):
            self._reached("laid out")
        return replace(entry, tables=tables)

    def _laid_out(self, name: str, entry: Entry) -> Rows:
        rows = entry.tables[name]
        if isinstance(rows, Files) or rows.num_rows < MANY:
            return rows
        place = appended(self._home, self._operators.get(name), name, rows, entry.batch_id)
        if place is None:
            return rows
        return Files((self._until_written(lambda: write_file(*place, batch_id=entry.batch_id)),))

    def carry_out(self, entry: Entry, *, recovers: bool = False) -> None:
        """Make the tables say what *entry* says; *recovers*: a driver before this one decided it, and was killed."""
        self._reached("decided")
        clocks = self._commit_data(entry, recovers=recovers)
        facts = self._facts.read(entry.batch_id)
        if facts is None:
            tables = self._measurer.facts(entry, clocks, finished_at_ms=self._clock())
            if self._undeliverable:
                refused = pl.concat(self._undeliverable)
                tables[UNDELIVERABLE.name] = self._measurer.of_batch(UNDELIVERABLE, refused, entry)
            self._newest_batches |= dict.fromkeys(tables, entry.batch_id)
            facts = Entry(entry.batch_id, tables, {NEWEST_BATCHES: self._newest_batches})
            self._facts.write(facts)
        self._reached("measured")
        for name in sorted(facts.tables, key=lambda name: name == BATCHES.name):
            self._commit(name, facts.tables[name], entry.batch_id)
        if tidied := self._tidying.tidy():
            self._reached(f"tidied {tidied.name}")

    def _commit_data(self, entry: Entry, *, recovers: bool) -> dict[str, Clocks]:
        """Commit the data of *entry*; per operator when it started, finished and was queued."""
        self._undeliverable = []
        carried_ms = self._clock()
        ready_ms = self._commit(CHANGES.name, entry.tables.get(CHANGES.name), entry.batch_id)
        notes = entry.notes["operators"]
        clocks: dict[str, Clocks] = {
            name: {k: v for k, v in of.items() if k != "counts"} | {"recovered": False} for name, of in notes.items()
        }
        # From its own result until all were there and written down each waited for siblings and the journal, and from
        # the commit of the changes until its own turn for siblings again.
        for name in self._shown_by_changes:
            if notes[name]["counts"].get("emitted"):
                waited_ms = carried_ms - clocks[name]["finished_at_ms"]
                clocks[name] = shown(clocks[name], ready_ms, waited_ms, recovers=recovers)
        for operator in self._handing_out:
            began_ms, own_ms = self._clock(), clocks[operator.name]["finished_at_ms"]
            finished_ms = self._hand_out(operator, entry)
            if isinstance(operator, Sink) and (mark := entry.notes.get("marks", {}).get(operator.name)):
                self._mark(operator, mark, entry)
            if finished_ms is not None:
                waited = carried_ms - own_ms, began_ms - max(own_ms, ready_ms)
                clocks[operator.name] = shown(clocks[operator.name], finished_ms, *waited, recovers=recovers)
        for name in LEDGERS:
            self._commit(name, entry.tables.get(name), entry.batch_id)
        return clocks

    def _mark(self, sink: Sink, mark: Mapping[str, Any], entry: Entry) -> None:
        """Write a mark of time for the readers of *sink*; the commit of a table's rows has had one already."""
        if sink.table is None:
            self._check_lease()
            self._broker.mark(sink, mark["watermark_ms"], idle=mark["idle"])
        elif _has_rows(sink, entry):
            return
        else:
            self._committer.tell(self._home / sink.table, entry.batch_id, told=self._told(entry))
            self._newest_batches[sink.table] = entry.batch_id
        self._reached(f"marked {sink.name}")

    def _told(self, entry: Entry) -> dict[str, str]:
        """The mark of time of the batch of *entry*."""
        progress = entry.notes["progress"]
        idle = progress.get("idle", False)  # an older version's entry does not say it
        return {MARK: mark_text(self._committer.app, progress["watermark_ms"], idle=idle)}

    def _hand_out(self, operator: Operator, entry: Entry) -> int | None:
        """Commit what a terminal operator has for others; the clock after it, None when it had nothing."""
        rows = entry.tables.get(operator.name)
        if isinstance(operator, Sink) and operator.table and operator.key:
            return self._replace(operator, operator.table, rows if rows is not None and rows.num_rows else None, entry)
        if rows is None or not rows.num_rows:
            return None
        match operator:
            case Repartition():
                return self._commit(f"hop_{operator.name}", rows, entry.batch_id)
            case Sink(table=str() as table):
                written = rows if isinstance(rows, Files) else sink_rows(operator, rows, entry.batch_id, self._home)
                return self._commit(table, written, entry.batch_id, told=self._told(entry))
            case Sink():
                epoch = entry.notes["batch"]["epoch"]
                self._check_lease()
                for part in frames(rows):
                    if refused := self._broker.publish(operator, part, batch_id=entry.batch_id, epoch=epoch):
                        self._undeliverable.append(undeliverable_rows(operator, part, refused))
                self._reached(f"committed {operator.name}")
                return self._clock()
        return None

    def _replace(self, sink: Sink, table: str, rows: Rows | None, entry: Entry) -> int | None:
        """Commit current *rows* of *sink*, and those that are final now; the clock after it, None without *rows*."""
        path, closed = self._home / table, self._open_windows.closed(sink, entry.notes["progress"]["watermark_ms"])
        if rows is None and closed is None:
            return None
        if rows is not None and not isinstance(rows, Files):
            rows = sink_rows(sink, rows, entry.batch_id, self._home)
        told = self._told(entry)
        at_ms = self._committer.upsert(path, rows, entry.batch_id, key=sink.key, told=told, closed=closed)
        self._open_windows.committed(sink, rows, closed)
        self._committed(table, entry.batch_id)
        return None if rows is None else at_ms

    def _commit(self, name: str, rows: Rows | None, batch_id: int, *, told: Told = NOTHING) -> int:
        if rows is None or not rows.num_rows:
            return self._clock()
        path = self._home / name
        if isinstance(rows, Files):
            at_ms = self._committer.adopt(path, rows, batch_id, told=told)
        else:
            at_ms = self._committer.commit(path, rows, batch_id, told=told)
        self._committed(name, batch_id)
        return at_ms

    def _committed(self, name: str, batch_id: int) -> None:
        self._newest_batches[name] = batch_id
        if name not in self._hops:
            self._tidying.committed(self._home / name)
        self._reached(f"committed {name}")


def _has_rows(sink: Sink, entry: Entry) -> bool:
    rows = entry.tables.get(sink.name)
    return rows is not None and rows.num_rows > 0


def shown(clock: Clocks, finished_ms: int, *waited_ms: int, recovers: bool) -> Clocks:
    """The *clock* of an operator whose rows others see from *finished_ms* on, after it *waited_ms* (< 0: not).

    What a driver before this one had committed did not wait for this one.
    """
    shown_ms = max(finished_ms, clock["finished_at_ms"])
    return {
        **clock,
        "finished_at_ms": shown_ms,
        "queued_ms": clock["queued_ms"] + min(sum(max(0, ms) for ms in waited_ms), shown_ms - clock["finished_at_ms"]),
        "recovered": recovers,
    }


def appended(
    home: Path, operator: Operator | None, name: str, rows: pa.Table, batch_id: int
) -> tuple[Path, pa.Table] | None:
    """The table under *home* that takes *rows* of a journal entry by their *name*, and what it takes.

    None when they are no table's, or not appended as they are.
    """
    match operator:
        case Repartition():
            return home / f"hop_{name}", rows
        case Sink(table=str() as table, key=()):
            return home / table, sink_rows(operator, rows, batch_id, home)
        case None if name in TABLES:
            return home / name, rows
    return None


def sink_rows(sink: Sink, records: pa.Table, batch_id: int, home: Path) -> pa.Table:
    """*records* as the table of a Delta *sink* under *home* takes them: payload, record time, where each came from.

    One that keeps current rows takes the last of each key. When a key was last seen is in *records* where they were
    decided with `last_seen_at`. Instants and bounds of windows are timestamps, and epoch ms in a column of an older
    version that is bigint.
    """
    rows = _as_sent(sink, records, batch_id)
    at = [name for name, kind in rows.schema.items() if kind == INSTANT and name in payload(records.column_names)]
    in_ms = bigint_columns(home / (sink.table or "")) if at else frozenset()
    return rows.with_columns(pl.col(name).dt.epoch("ms") for name in at if name in in_ms).to_arrow()


def _as_sent(sink: Sink, records: pa.Table, batch_id: int) -> pl.DataFrame:
    frame = pl.DataFrame(records)
    if sink.key:
        frame = frame.unique(sink.key, keep="last", maintain_order=True)
    return frame.select(
        *(instants(name) if name in sink.bounds else pl.col(name) for name in payload(frame.columns)),
        timestamp=instants("_timestamp_ms"),
        batch_id=pl.lit(batch_id, pl.Int64),
        source_partition="_partition",
        source_offset="_offset",
        deleted="_deleted",
        **final_columns(frame.columns),
        **last_seen_columns(frame.columns),
    )


def _as_it_is(schema: pa.Schema, path: Path) -> pa.Schema:
    """*schema* with the columns bigint that hold epoch ms in the table at *path*, if an older version created it."""
    if not DeltaTable.is_deltatable(str(path)):
        return schema
    in_ms = [f for f in schema if f.type == UTC_TIMESTAMP and f.name in bigint_columns(path)]
    for field in in_ms:
        schema = schema.set(schema.get_field_index(field.name), field.with_type(pa.int64()))
    return schema


_OWN = tuple(table for table in TABLES.values() if table.written_by == "stream")


def table_names(sub: SubTopology) -> list[str]:
    """Those that the batches of *sub* write."""
    names = [*(table.name for table in _OWN), *_hops(sub)]
    return names + [o.table for o in sub.operators if isinstance(o, Sink) and o.table]


def tables_alone(home: Path, sub: SubTopology) -> list[str]:
    """Those in *home* into which nobody else may put rows.

    On a disk those that a driver reads: it would take the rows that others put in for those of the stream. In an object
    store every one into which a driver puts its batches: there a table has one writing process.
    """
    if isinstance(home, ObjectPath):
        return [name for name in table_names(sub) if name not in {HEARTBEATS.name, CLOCK_SKEW.name}]
    return [HELD_RECORDS.name, *_hops(sub)]


def _hops(sub: SubTopology) -> list[str]:
    return [f"hop_{o.name}" for o in sub.operators if isinstance(o, Repartition)]


def create_tables(home: Path, sub: SubTopology, schemas: Mapping[str, Mapping[str, pl.DataType]]) -> None:
    """All Delta tables that the driver of *sub* writes, empty where there was none.

    *schemas* are those of the operators' outputs.
    """
    for table in _OWN:
        log = KEPT_LOG if table.name in {CHANGES.name, *LEDGERS} else SHORT_LOG
        create(home / table.name, arrow_schema(table), description=table.row, log=log)
    for operator in sub.operators:
        if isinstance(operator, Repartition):
            create(home / f"hop_{operator.name}", arrow_schema(HOP), description=HOP.row)
        if isinstance(operator, Sink) and operator.table:
            schema = (
                _as_sent(operator, pl.DataFrame(schema=dict(schemas[operator.name])).to_arrow(), 0).to_arrow().schema
            )
            if operator.key:
                schema = pa.schema([field for field in schema if field.name not in OF_REPLACING])
            schema = _as_it_is(schema, home / operator.table)
            schema = commented(schema, operator, {o.name: o for o in sub.operators}, schemas)
            create(home / operator.table, schema, description=f"what reached the sink {operator.name}")
