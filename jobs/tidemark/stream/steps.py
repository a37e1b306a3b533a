"""What one operator decides of one batch: its kind's kernel, with what it kept, and the rows its tables get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.kernels import META, payload
from tidemark.kernels.aggregate_function import OLD, AggregateFunction
from tidemark.kernels.emission import newest_per_key
from tidemark.kernels.expressions import PROBLEM, Expressions
from tidemark.kernels.facts import times_of
from tidemark.kernels.final_rows import with_final
from tidemark.kernels.last_seen import with_last_seen
from tidemark.kernels.proofs import as_late, changes_rows, late_rows, quarantine_rows, suppressed_rows
from tidemark.kernels.schemas import META_SCHEMA, record_schema
from tidemark.kernels.steps import (
    MATCHED,
    InvalidColumns,
    hop_records,
    hop_rows,
    is_beyond,
    join_newest,
    join_valid,
    map_records,
    map_updates,
    newest_by_time,
    pruned,
    repartition_columns,
    repartition_updates,
    stream_hop_rows,
    table_updates,
    united,
    value_columns,
    with_old_value,
)
from tidemark.kernels.values import key_text, value_text
from tidemark.kernels.windows import WINDOW
from tidemark.semantics.strategy import Strategy
from tidemark.spec.operators import (
    Aggregate,
    HopSource,
    Join,
    KeyedTable,
    Map,
    NewestBy,
    Operator,
    Repartition,
    Sink,
    Source,
    Union,
    emission_of,
)
from tidemark.spec.tables import QUARANTINE
from tidemark.spec.toml_operators import misshapen, mistakes_of
from tidemark.spec.topology import Topology, updates_tables
from tidemark.stream.aggregating import Aggregating
from tidemark.stream.batch import Moment
from tidemark.stream.emitting import Emitted, Emitter, is_due
from tidemark.stream.keyed_rows import KeyedRows
from tidemark.stream.limits import within_limits
from tidemark.stream.misfits import ColumnMistake, misfits, reads
from tidemark.stream.state import HELD, Memory, Moves

HOP_RECORDS: Mapping[str, pl.DataType] = {"value": pl.String(), "old_value": pl.String(), **META_SCHEMA}
"""A row of a hop: texts of the value to add and of the one to take back."""

BEFORE_TIME = Moment(was_watermark_ms=None, watermark_ms=None, held_by=None, was_decided_at_ms=None, decided_at_ms=0)

Reference = Callable[[str], pl.DataFrame]
"""Reads the newest version of the Delta table at a place that a join names."""


@dataclass
class Run:
    """What one operator did in one batch.

    `output`: the records that the next operators read; `times`: of what it finished, how many of each record time and
    task; `counts`: updates by outcome; `skipped`: suppressed updates per task; `asserted`: all updates of an operator
    that judges them, sent on or not, which of a table are its versions; `rows`: what its tables get, by table;
    clocks (epoch ms): when it began, when its result was there, and how long it had waited for a sibling branch before
    it began.
    """

    output: pl.DataFrame
    times: pl.DataFrame
    counts: Counter[str]
    rows: dict[str, pl.DataFrame] = field(default_factory=dict)
    skipped: Mapping[int, int] = field(default_factory=dict)
    asserted: pl.DataFrame = field(default_factory=pl.DataFrame)
    started_at_ms: int = 0
    finished_at_ms: int = 0
    queued_ms: int = 0


class Steps:
    """The kernels of a topology's operators, and the memory that they read and move.

    At start every operator runs once over no records, which tells the schema of its output and refuses SQL and columns
    that do not fit. *known* are mistakes of the file that were found before: *topology* is then what it has without.
    """

    def __init__(self, topology: Topology, reference: Reference, known: Sequence[InvalidSpec] = ()) -> None:
        self._topology = topology
        self._reference = reference
        self._sql = Expressions()
        self._updates = updates_tables(topology.operators)
        self._aggregating: dict[str, Aggregating] = {}
        self._history_ms: dict[str, int | None] = {}
        self._terminals = {name for sub in topology.sub_topologies for name in sub.terminals()}
        self.memory = Memory()
        self.schemas: dict[str, Mapping[str, pl.DataType]] = {}
        mistakes = [mistake for operator in topology.operators.values() for mistake in self._mistakes(operator, known)]
        if mistakes:
            raise InvalidSpec("\n".join(map(str, mistakes)))

    def _mistakes(self, operator: Operator, known: Sequence[InvalidSpec]) -> list[InvalidSpec]:
        """Prepare *operator*, or say everything for which that cannot be; nothing where one that it reads has them.

        Where *known* mistakes leave open what it hands on, it is only looked at.
        """
        at = f"operators.{operator.name}"
        own = mistakes_of(operator.name, known)
        wrong = {mistake.key.removeprefix(f"{at}.") for mistake in own}
        read = self._topology.upstreams[operator.name]
        if not self.schemas.keys() >= {*read}:
            return []
        schema = self.schemas[operator.inputs[0]] if operator.inputs else {}
        found = misfits(operator, schema, self._sql, wrong)
        if not found and not misshapen(own):
            try:
                self._prepare(operator)
            except (InvalidArgument, pl.exceptions.PolarsError) as error:
                columns = dict.fromkeys(c for name in operator.inputs for c in payload(self.schemas[name]))
                problems = error.problems if isinstance(error, InvalidColumns) else [_without_columns(error)]
                found = [
                    ColumnMistake(_key_of(operator, error), f"does not fit what it reads: {problem}", reads(columns))
                    for problem in problems
                ]
        return [
            InvalidSpec.at(self._topology.file, f"{at}.{each.key}" if each.key else at, each.problem, each.remedy)
            for each in found
        ]

    def _prepare(self, operator: Operator) -> None:
        match operator:
            case Source():
                self.schemas[operator.name] = record_schema(operator.columns)
                return
            case HopSource():
                self.schemas[operator.name] = self.hop_records(operator, pl.DataFrame(schema=dict(HOP_RECORDS))).schema
                return
            case Aggregate():
                schema = self.schemas[operator.inputs[0]]
                self._aggregating[operator.name] = Aggregating(operator, schema, self._sql, self.memory)
            case Join(table=str() as table):
                self.memory.version(table, self.version_schema(table))
                self._history_ms[table] = history_ms(self._topology, table)
            case KeyedTable() | Repartition() | Map() if (emission := emission_of(operator)) is not None:
                keeps = emission.holds or _is_by_time(operator)
                states = KeyedRows(self.state_schema(operator), key="_key") if keeps else None
                self.memory.keep(operator.name, states)
        inputs = [pl.DataFrame(schema=self.schemas[name]) for name in operator.inputs]
        self.schemas[operator.name] = self.run(operator, inputs, Moves(), BEFORE_TIME).output.schema

    def version_schema(self, table: str) -> dict[str, pl.DataType]:
        """What is kept of each version of *table* for joins: its columns and the record time from which it holds."""
        columns = {c: kind for c, kind in self.schemas[table].items() if c not in META}
        return {**columns, MATCHED: pl.Boolean(), "_valid_from_ms": pl.Int64()}

    def state_schema(self, operator: Operator) -> dict[str, pl.DataType]:
        """The columns of the states of *operator*, no aggregate: those of its newest update."""
        records = pl.DataFrame(schema=self.schemas[operator.inputs[0]])
        updates = self._prepared(operator)(self._mapped(operator, records) if isinstance(operator, Map) else records)
        return {
            **{c: kind for c, kind in updates.schema.items() if not c.startswith("_")},
            **META_SCHEMA,
            HELD: pl.Boolean(),
        }

    def functions(self, operator: Operator) -> Sequence[AggregateFunction]:
        """The aggregate functions of *operator*, if it is an aggregate."""
        aggregating = self._aggregating.get(operator.name)
        return aggregating.kernel.functions if aggregating else ()

    def take(self, moves: Moves, *, watermark_ms: int | None) -> None:
        """Make *moves* what the next batch finds, and drop versions that no record still taken in can ask for."""
        self.memory.take(moves)
        for name in moves.versions:
            table, behind_ms = self._topology.operators[name], self._history_ms[name]
            if isinstance(table, KeyedTable) and watermark_ms is not None and behind_ms is not None:
                before_ms = watermark_ms - behind_ms
                self.memory.versions[name] = pruned(self.memory.versions[name], table.key, before_ms=before_ms)

    def is_due(self, operator: Operator, was_decided_at_ms: int | None, decided_at_ms: int) -> bool:
        """Whether *operator* has something to say in a batch without records: its interval has ended."""
        emission = emission_of(operator)
        if emission is None or not len(self.memory.states.get(operator.name, ())):
            return False
        return is_due(emission, was_decided_at_ms, decided_at_ms)

    def waiting(self, source: Source) -> pl.DataFrame:
        """The records of *source* that wait for other partitions."""
        empty = pl.DataFrame(schema=dict(self.schemas[source.name]))
        return self.memory.waiting.get(source.name, empty)

    def hop_records(self, source: HopSource, rows: pl.DataFrame) -> pl.DataFrame:
        """The records that *rows* of the hop are to the readers of *source*."""
        repartition = self._topology.operators[source.repartition]
        assert isinstance(repartition, Repartition)
        schema = self.schemas[repartition.inputs[0]]
        return hop_records(repartition, rows, {column: schema[column] for column in repartition_columns(repartition)})

    def run(self, operator: Operator, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        """What *operator* decides of its *inputs*; what it will have kept is put into *moves*.

        Records for which its SQL failed are rows of quarantine.
        """
        self._sql.failed.clear()
        run = self._ran(operator, inputs, moves, moment)
        known = [rows for rows in [run.rows.get("quarantine")] if rows is not None]
        if failed := [
            quarantine_rows(operator.name, rows, "sql_error", pl.col(PROBLEM)) for rows in self._failed if rows.height
        ]:
            run.rows["quarantine"] = pl.concat([*known, *failed], how="diagonal")
        return run

    @property
    def _failed(self) -> list[pl.DataFrame]:
        """The records for which SQL failed in this run; a result that is repeated has failed before."""
        return [rows.filter(HELD) if HELD in rows.columns else rows for rows in self._sql.failed]

    @property
    def _failed_n(self) -> int:
        return sum(rows.height for rows in self._failed)

    def _ran(self, operator: Operator, inputs: list[pl.DataFrame], moves: Moves, moment: Moment) -> Run:
        records = inputs[0]
        match operator:
            case Map():
                return self._map(operator, records, moves, moment)
            case KeyedTable():
                return self._table(operator, records, moves, moment)
            case Join():
                return self._join(operator, records, moves, moment)
            case Union():
                output = united(dict(zip(operator.inputs, inputs, strict=True)))
                return Run(output, times_of(output), Counter(records_in=output.height, passed=output.height))
            case Repartition():
                return self._repartition(operator, records, moves, moment)
            case Aggregate():
                return self._aggregate(operator, records, moves, moment)
            case Sink():
                return _sent(operator, *inputs, moment=moment)
            case _:
                msg = f"{operator.name}: a {operator.kind} has no step"
                raise InvalidArgument(msg)

    def _mapped(self, operator: Map, records: pl.DataFrame) -> pl.DataFrame:
        return map_records(operator, records, self._sql, updates=operator.name in self._updates)

    def _map(self, operator: Map, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        mapped = self._mapped(operator, records)
        failed = self._failed_n
        filtered = records.height - mapped.height - failed
        if operator.emission is None:
            counts = Counter(records_in=records.height, passed=mapped.height, filtered=filtered, quarantined=failed)
            return Run(mapped, times_of(records), counts)
        run = self._newest(operator, mapped, moves, moment, mapped.columns, finished=records)
        others = Counter(records_in=filtered + failed, filtered=filtered, quarantined=failed)
        return replace(run, counts=run.counts + others)

    def _join(self, operator: Join, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        updates = operator.name in self._updates
        if operator.table is not None:
            return self._join_versions(operator, operator.table, records, moves, moment)
        output = join_newest(operator, records, self._reference(operator.delta or ""), updates=updates)
        filtered = records.height - output.height
        counts = Counter(records_in=records.height, passed=output.height, filtered=filtered)
        return Run(output, times_of(records), counts)

    def _join_versions(self, operator: Join, name: str, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        """*records* with the versions of the table *name* that were valid; what asks beyond its history may be late."""
        table, behind_ms, was_ms = self._topology.operators[name], self._history_ms[name], moment.was_watermark_ms
        kept_from_ms = None if was_ms is None or behind_ms is None else was_ms - behind_ms
        beyond = is_beyond(kept_from_ms) & ~pl.col("_deleted")  # what deletes its key looks nothing up
        is_late = beyond & pl.lit(value=isinstance(table, KeyedTable) and table.is_strict)
        late, asking = records.filter(is_late), records.filter(~is_late)
        versions, updates = self._versions(name, moves), operator.name in self._updates
        output = join_valid(operator, asking, versions, updates=updates, kept_from_ms=kept_from_ms)
        counts = Counter(
            records_in=records.height,
            passed=output.height,
            filtered=asking.height - output.height,
            late=late.height,
            joined_beyond_history=asking.filter(beyond).height,
        )
        rows = {"late_records": late_rows(operator.name, as_late(late), was_ms, moment.held_by)}
        return Run(output, times_of(records), counts, rows)

    def _versions(self, table: str, moves: Moves) -> pl.DataFrame:
        """All versions of *table* read so far, this batch's among them."""
        known = self.memory.versions[table]
        return pl.concat([known, moves.versions[table]]) if table in moves.versions else known

    def _table(self, operator: KeyedTable, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        columns = [*operator.key, *value_columns(operator, records.columns)]
        run = self._newest(operator, records, moves, moment, [*columns, *META], finished=records)
        if operator.name in self.memory.versions:
            valid = [pl.when(~pl.col("_deleted")).then(c).alias(c) for c in columns if c not in operator.key]
            moves.versions[operator.name] = run.asserted.select(
                *operator.key, *valid, (~pl.col("_deleted")).alias(MATCHED), _valid_from_ms="_timestamp_ms"
            )
        return run

    def _newest(
        self,
        operator: KeyedTable | Map,
        records: pl.DataFrame,
        moves: Moves,
        moment: Moment,
        columns: Sequence[str],
        *,
        finished: pl.DataFrame,
    ) -> Run:
        """The newest of *records* per key, with the *columns* of it that are sent on; all of those *finished* count."""
        updates, bad = _with_key(operator, self._prepared(operator)(records))
        emitted = self._emitted(operator, updates, moves, moment)
        rows = {**self._judged_rows(operator, emitted), **self._state_rows(operator, moves), **bad}
        counts = emitted.counts + Counter(records_in=records.height, quarantined=records.height - updates.height)
        times = self._finished(operator, finished, emitted)
        return Run(emitted.output.select(columns), times, counts, rows, emitted.judged.skipped, emitted.asserted)

    def _finished(self, operator: Operator, records: pl.DataFrame, emitted: Emitted) -> pl.DataFrame:
        """The times of what *operator* finished: *records*, or where it holds and nobody reads it, what it sends on."""
        emission = emission_of(operator)
        waits = emission is not None and emission.holds and operator.name in self._terminals
        return times_of(emitted.judged.emitted if waits else records)

    def _prepared(self, operator: Operator) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """What makes records, or states, updates of *operator*."""
        match operator:
            case KeyedTable():
                return partial(table_updates, operator)
            case Map():
                return lambda records: map_updates(operator, records, self._sql)
            case Repartition():
                return partial(repartition_updates, operator)
            case _:
                msg = f"{operator.name}: a {operator.kind} makes no updates of records"
                raise InvalidArgument(msg)

    def _emitted(self, operator: Operator, updates: pl.DataFrame, moves: Moves, moment: Moment) -> Emitted:
        emission = emission_of(operator)
        assert emission is not None
        by_time = _is_by_time(operator)
        prepared = self._prepared(operator)
        emitter = Emitter(operator.name, emission, self.memory, prepared, remembers_deleted=by_time)
        kept = newest_by_time(updates, self.memory.states[operator.name].of(updates["_key"])) if by_time else updates
        newest = newest_per_key(kept)
        if emission.holds:
            return emitter.hold(newest, updates.height, updates["_key"].clear(), moves, moment)
        if by_time:
            states = newest.with_columns(pl.lit(value=False).alias(HELD))
            emitter.keep(states.select(*self.state_schema(operator)), updates["_key"].clear(), moves, moment)
        return emitter.at_once(kept, moves, superseded=updates.height - kept.height)

    def _repartition(self, operator: Repartition, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        if not operator.id:
            kept, bad = _with_key(operator, records.filter(~pl.col("_deleted")), operator.key)
            rows = stream_hop_rows(operator, kept)
            filtered = int(records["_deleted"].sum())
            counts = Counter(records_in=records.height, passed=rows.height, filtered=filtered, fan_out=rows.height)
            counts["quarantined"] = records.height - filtered - kept.height
            return Run(rows, times_of(kept), counts, {operator.name: rows, **bad})
        updates, bad = _with_key(operator, self._prepared(operator)(records))
        stored = self.memory.stored[operator.name].of(updates["_key"])
        emitted = self._emitted(operator, updates, moves, moment)
        if emitted.held_before:
            stored = self.memory.stored[operator.name].of(emitted.judged.emitted["_key"])
        rows = hop_rows(operator, with_old_value(emitted.judged.emitted, stored))
        counts = emitted.counts + Counter(
            records_in=records.height, quarantined=records.height - updates.height, fan_out=rows.height
        )
        tables = {operator.name: rows, "suppressed": suppressed_rows(operator.name, emitted.judged)}
        tables |= self._state_rows(operator, moves) | bad
        return Run(rows, times_of(emitted.judged.emitted), counts, tables, emitted.judged.skipped)

    def _aggregate(self, operator: Aggregate, records: pl.DataFrame, moves: Moves, moment: Moment) -> Run:
        takes_back = OLD in records.columns
        kept = records if takes_back else records.filter(~pl.col("_deleted"))
        keyed, bad = _with_key(operator, kept, operator.key)
        aggregating = self._aggregating[operator.name]
        done = aggregating.run(keyed, moves, moment)
        filtered, no_key = records.height - kept.height, kept.height - keyed.height
        quarantined = no_key + self._failed_n
        counts = done.emitted.counts + Counter(late=done.late.height, filtered=filtered, quarantined=quarantined)
        counts["records_in"] = done.updates + done.late.height + filtered + no_key
        counts["reopened"] = done.reopened
        late = {"late_records": late_rows(operator.name, as_late(done.late), moment.was_watermark_ms, moment.held_by)}
        rows = {**self._judged_rows(operator, done.emitted), **self._state_rows(operator, moves), **late, **bad}
        output = done.emitted.output.select(*aggregating.kernel.key, *operator.select, *META)
        times = self._finished(operator, records, done.emitted)
        return Run(output, times, counts, rows, done.emitted.judged.skipped, done.emitted.asserted)

    def _judged_rows(self, operator: Operator, emitted: Emitted) -> dict[str, pl.DataFrame]:
        window = {}
        if isinstance(operator, Aggregate) and operator.windows:
            window = {"window_start": "window_start", "window_end": "_window_end"}
        changes = changes_rows(operator.name, emitted.judged, **window)
        joined = operator.name in self.memory.versions
        return {"changes": changes, "suppressed": suppressed_rows(operator.name, emitted.judged, joined=joined)}

    def _state_rows(self, operator: Operator, moves: Moves) -> dict[str, pl.DataFrame]:
        """The states that moved, and those that are gone, as rows of their table."""
        if operator.name not in moves.states:
            return {}
        states, dropped = moves.states[operator.name], moves.dropped[operator.name].unique()
        kept = states.filter(~pl.col("_key").is_in(dropped.implode()))
        columns = [c for c in kept.columns if not c.startswith("_") and c not in WINDOW]
        window = {c: c for c in WINDOW if c in kept.columns}
        moved = kept.select(
            operator=pl.lit(operator.name),
            key="_key",
            state=value_text(columns, kept.schema),
            held=HELD,
            deleted="_deleted",
            headers="_headers",
            timestamp="_timestamp_ms",
            newest="_newest_ms",
            repeated="_repeated",
            partition="_task",
            source_partition="_partition",
            source_offset="_offset",
            **window,
        )
        known = dropped.filter(dropped.is_in(self.memory.states[operator.name].of(dropped)["_key"].implode()))
        gone = pl.DataFrame({"operator": pl.Series([operator.name] * known.len(), dtype=pl.String), "key": known})
        return {"operator_state": pl.concat([moved, gone], how="diagonal")}


def _sent(sink: Sink, records: pl.DataFrame, asserted: pl.DataFrame | None = None, *, moment: Moment) -> Run:
    """What *sink* hands out of *records*: all, or what its topic takes.

    *asserted* are all updates of the operator that it reads, which tell when a key was last seen.
    """
    rows = {}
    if sink.table and sink.window:
        records = with_final(sink.window, records, moment.watermark_ms)
    kept = records
    if sink.last_seen_at:
        seen = with_last_seen(records, records if asserted is None else asserted, sink.key)
        counts = Counter(records_in=records.height, passed=records.height)
        return Run(seen, times_of(records), counts, {sink.name: seen})
    if sink.topic and (limits := moment.limits.get(sink.name)):
        kept, rows[QUARANTINE.name] = within_limits(sink, records, limits, now_ms=moment.decided_at_ms)
    counts = Counter(records_in=records.height, passed=kept.height, quarantined=records.height - kept.height)
    return Run(kept, times_of(kept), counts, {sink.name: kept, **rows})


def _key_of(operator: Operator, error: Exception) -> str:
    """The key of *operator* that *error* is about; empty where only the whole of it is known."""
    if isinstance(error, InvalidColumns):
        return error.key
    if isinstance(operator, Join):
        return "on" if isinstance(error, pl.exceptions.PolarsError) else "table" if operator.table else "delta"
    return ""


def _without_columns(error: Exception) -> str:
    """What *error* says, without the list of columns that polars adds: it has those of Tidemark's own."""
    return str(error).splitlines()[0].partition("; valid columns")[0]


HISTORY_MS = 3_600_000
"""For so long of record time a table that is joined keeps its versions, unless the file says otherwise."""


def history_ms(topology: Topology, name: str) -> int | None:
    """For how long behind the watermark the versions of the table *name* are kept for joins; None: for ever.

    Unless its `history` says so that is HISTORY_MS, or as long as a result of the windows before a join may be behind;
    and for ever behind what is periodic, which repeats results however old.
    """
    table = topology.operators[name]
    if isinstance(table, KeyedTable) and table.history_ms is not None:
        return table.history_ms
    behind_ms = HISTORY_MS
    for join in topology.operators.values():
        if not isinstance(join, Join) or join.table != name:
            continue
        before = [*join.flows]
        while before:
            operator = topology.operators[before.pop()]
            emission = emission_of(operator)
            if emission is not None and emission.strategy is Strategy.PERIODIC:
                return None
            if isinstance(operator, Aggregate) and (windows := operator.windows):
                behind_ms = max(behind_ms, windows.behind_ms)
            before += operator.flows
    return behind_ms


def _is_by_time(operator: Operator) -> bool:
    return isinstance(operator, KeyedTable) and operator.newest_by is NewestBy.EVENT_TIME


def _with_key(
    operator: Operator, records: pl.DataFrame, key: tuple[str, ...] | None = None
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """*records* whose key is not null, and those where it is as rows of quarantine; the key is `_key` unless named."""
    text = pl.col("_key") if key is None else key_text(key, records.schema)
    bad = records.filter(text.is_null())
    rows = quarantine_rows(operator.name, bad, "null_key")
    return records.filter(text.is_not_null()), {"quarantine": rows}
