"""Judges the updates of `changed` in Spark's tasks, with states in files.

Purpose: neither the updates nor the states of their keys pass through the driver.
How it works: the hash of its key assigns an update to a shard. The task of a shard maps the state runs of its keys,
judges the updates by the same function as the driver does, and writes files: rows in the folders of their tables, the
row ids of suppressed updates, and a state run (a file of keyed states). The driver gets the names and counts, writes
these to a journal, hands out the rows, and then commits the files. A batch that is in the journal is never judged
again: it hands out the same rows, because the row ids of its suppressed updates are in a file. A state that the journal
does not name is rebuilt from the table `changes`: at first, and with another number of shards. A row id is the pair of
partition and offset that identifies a row of a batch. Known limitation: the updates of a shard in one batch have to fit
into the memory of an executor's Python.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.api.query import FactsWriter, Query, as_arrow, replaced
from tidemark.clock import wall_clock_ms
from tidemark.errors import Contradiction, InvalidArgument, InvalidTimestamp
from tidemark.kernels.columns.placement import shard_of
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.columns.values import key_text
from tidemark.kernels.updates.emission import identified, judged, with_value
from tidemark.kernels.updates.proofs import changes_rows, suppressed_rows
from tidemark.model.tables.catalog import CHANGES, SUPPRESSED
from tidemark.semantics.change import Rule
from tidemark.spark_session import forget_archives
from tidemark.storage.delta.tables import read_before
from tidemark.storage.files import File, Files, batch_of, write_file
from tidemark.storage.location import location
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.stream.journal.notes import EntryNotes, JudgedNotes
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.shards.tasks import SEQ_BITS
from tidemark.stream.state.files import StateFiles, remove_unnamed
from tidemark.stream.state.memory import Memory, Moves

LEFT_OUT = "left_out"
"""In place of a table's name: the files of a batch with the row ids of its suppressed updates."""
SHARDED = pa.schema(
    [
        ("shard", pa.int32()),
        ("_key", pa.string()),
        ("_value", pa.string()),
        ("_identity", pa.string()),
        ("_timestamp_ms", pa.int64()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
"""An update with its shard. A row without an offset is no update: it only makes Spark run a task for the shard."""
SHARDED_DDL = (
    "shard int, _key string, _value string, _identity string, _timestamp_ms bigint, _partition int, _offset bigint"
)
COUNTS = ("emitted", "suppressed", "passed")
FEWEST, MOST = 2, 32
"""Least and most shards if their number follows from the cores of a cluster."""
IN_DRIVER = "or keep the keys in the driver: api.State(…, shards=1)"
LACKS = re.compile(r"No module named '((?:tidemark|polars|pyarrow|numpy|deltalake)\b[\w.]*)'")
"""Python's message where a package that the tasks need is missing."""
Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class OperatorStates:
    """Where the states of an operator are, and when they are written: its files are in the folder `control`."""

    control: Path
    # Each batch writes the states that it changes into a state run, so that the journal has none of them.
    flush_keys: int = 1
    flush_batches: int = 1

    @property
    def journal(self) -> Journal:
        """The journal of the operator's batches."""
        return Journal(self.control / "journal", "data")

    @classmethod
    def of(cls, query: Query, operator: str) -> OperatorStates:
        """Returns where the states of *operator* in *query* are."""
        return cls(query.control / "changed" / operator)


@dataclass(frozen=True, kw_only=True)
class ShardAnswer:
    """What a task has decided for its shard in one batch.

    Attributes:
        counts: the number of updates by outcome.
        files: the written files by the name of their table, or LEFT_OUT.
        runs: the state runs that make the shard's state after the batch.
    """

    counts: Mapping[str, int]
    files: Mapping[str, File]
    runs: StateRuns


@dataclass(frozen=True, kw_only=True)
class JudgeTask:
    """Judges the updates of one shard in one batch; Spark's tasks get a copy.

    Attributes:
        states: where the states are.
        query: the query.
        operator: the operator that judges.
        rule: when an update counts as unchanged.
        batch_id: number of the batch.
        shards: the number of shards.
        before: number of the newest batch in the journal; −1 before the first.
        runs: by shard, the state runs after that batch; None to rebuild the states from the table `changes`.
    """

    states: OperatorStates
    query: Query
    operator: str
    rule: Rule
    batch_id: int
    shards: int
    before: int
    runs: tuple[StateRuns, ...] | None

    def __call__(self, shard: int, updates: pl.DataFrame) -> ShardAnswer:
        """Decides what becomes of the *updates* of *shard*, and writes the files that say so."""
        memory = Memory()
        memory.keep(self.operator)
        files = StateFiles(self.states, self.states.journal, shard, self.shards)
        if self.runs is None:
            memory.stored[self.operator].put(self._sent_before(shard))
        else:
            files.load(memory, self.runs[shard], self.before)
        in_order = updates.sort("_partition", "_offset").with_columns(_task="_partition")
        keyed = in_order.filter(pl.col("_key").is_not_null())
        result = judged(keyed, memory.stored[self.operator].look_up(keyed["_key"]), self.rule)
        moves = Moves(stored={self.operator: result.stored})
        _, runs = files.entry_states(memory, self.before, self.batch_id, moves)
        same = self.query.same(self.batch_id)
        changes = rows_of(CHANGES, changes_rows(self.operator, result), **same)
        seq = changes.column_names.index("seq")
        # Numbers are unique over all shards.
        changes = changes.set_column(seq, changes.schema.field(seq), pc.add(changes["seq"], shard << SEQ_BITS))
        row_id = ["_partition", "_offset"]
        rows = {
            CHANGES.name: changes,
            SUPPRESSED.name: rows_of(SUPPRESSED, suppressed_rows(self.operator, result), **same),
            LEFT_OUT: keyed.select(row_id).join(result.emitted, on=row_id, how="anti").to_arrow(),
        }
        counts = (result.emitted.height, result.suppressed_n, updates.height - keyed.height)
        return ShardAnswer(
            counts=dict(zip(COUNTS, counts, strict=True)),
            files={name: self._write(name, table) for name, table in rows.items() if table.num_rows},
            runs=runs,
        )

    def _write(self, name: str, rows: pa.Table) -> File:
        folder = self.states.control / LEFT_OUT if name == LEFT_OUT else self.query.table(name)
        folder.mkdir(parents=True, exist_ok=True)
        return write_file(folder, rows, batch_id=self.batch_id)

    def _sent_before(self, shard: int) -> pl.DataFrame:
        """Reads all updates of *shard* that earlier batches sent on from the table `changes`."""

        def of_shard(rows: pl.DataFrame) -> pl.DataFrame:
            changes = rows.filter(pl.col("operator") == self.operator)
            return changes.filter(shard_of(changes["key"], self.shards) == shard)

        columns = ["operator", "seq", "key", "value", "value_hash", "timestamp"]
        table = self.query.table(CHANGES.name)
        rows = read_before(table, self.batch_id, columns, keep=of_shard).sort("batch_id", "seq")
        timed = rows.with_columns(timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
        return timed.select("key", "value", "timestamp_ms", identity="value_hash")


def _usual_shards(spark: SparkSession, newest: Entry | None) -> int:
    """Returns the number of shards for a state that names none.

    The number of the *newest* batch stays: with another one the states would have to be rebuilt from `changes`.
    """
    if newest is not None:
        return len(newest.notes.states)
    return min(max(spark.sparkContext.defaultParallelism, FEWEST), MOST)


class ShardedState:
    """Judges batches of *query* in Spark's tasks, one for each shard, and keeps the states in files.

    If *shards* is None, a batch has as many shards as the newest one. The first batch has one for each core of the
    executors that have registered by then.
    """

    def __init__(self, query: Query, operator: str, rule: Rule, shards: int | None) -> None:
        self._query, self._operator, self._rule, self._shards = query, operator, rule, shards
        self._states = OperatorStates.of(query, operator)

    def judge(self, read: DataFrame, batch_id: int, key: Sequence[str], columns: Sequence[str]) -> Entry:
        """Returns the decision about a batch: the one in the journal, if the batch was judged before.

        Args:
            read: the rows of the batch with `_timestamp_ms`, `_partition` and `_offset`.
            batch_id: the batch.
            key: columns of the key.
            columns: columns of the value.

        Raises:
            Contradiction: the batch was judged before with other rows, or comes before a later one.
        """
        digest = _digest(read, key)
        writer, journal = self._writer(), self._states.journal
        committed, newest = writer.open(CHANGES.name, batch_id), journal.newest()
        writer.open(SUPPRESSED.name, batch_id)
        if newest is not None and newest.batch_id > batch_id:
            raise replaced(self._states.control, batch_id, newest.batch_id)
        if newest is not None and newest.batch_id == batch_id:
            if newest.notes.judgement.digest != digest:
                raise other_rows(self._states.control, batch_id, self._operator)
            return newest
        # Asked after the digest, a Spark job: before its first job Spark may count no executor.
        shards = self._shards or _usual_shards(read.sparkSession, newest)
        runs = newest.notes.states if newest else (StateRuns(),) * shards
        is_known = len(runs) == shards and committed <= (newest.batch_id if newest else -1)
        task = JudgeTask(
            states=self._states,
            query=self._query,
            operator=self._operator,
            rule=self._rule,
            batch_id=batch_id,
            shards=shards,
            before=newest.batch_id if newest else -1,
            runs=runs if is_known else None,
        )
        answers = _answers(read, task, key, columns)
        require_here(answers, self._operator)
        entry = _entry(batch_id, digest, answers)
        journal.write(entry)
        self._forget_before(batch_id)
        return entry

    def move(self, entry: Entry) -> Mapping[str, int]:
        """Commits the rows of the decision *entry*; returns the number of updates by outcome."""
        tables = {name: rows for name, rows in entry.tables.items() if name != LEFT_OUT}
        self._writer().append(tables, entry.batch_id)
        remove_unnamed(self._states.control, entry.notes.states, check_lease=lambda: None)
        return entry.notes.judgement.counts

    def _writer(self) -> FactsWriter:
        return FactsWriter(self._query, self._operator, wall_clock_ms)

    def _forget_before(self, batch_id: int) -> None:
        """Removes the files with row ids of suppressed updates of earlier batches."""
        for file in (self._states.control / LEFT_OUT).glob("*.parquet"):
            if (batch_of(file) or 0) < batch_id:
                file.unlink(missing_ok=True)


def suppressed_files(entry: Entry) -> list[str]:
    """Returns the paths of the files with the row ids of *entry*'s suppressed updates."""
    files = entry.tables.get(LEFT_OUT)
    return [file.path for file in files.files] if isinstance(files, Files) else []


def other_rows(where: Path, batch_id: int, operator: str) -> Contradiction:
    """Returns the error for a batch that is run again with other rows than before."""
    return Contradiction(
        f"{where}: batch {batch_id} of {operator} sent other updates in an earlier run; read the same rows in every "
        "run, and use a state once in a batch"
    )


def _digest(read: DataFrame, key: Sequence[str]) -> str:
    """Returns a digest of the rows of a batch, by which a repeated batch is recognised.

    Raises:
        InvalidArgument: the row ids of the batch are null somewhere, or not unique.
        InvalidTimestamp: a row with a key has no usable record time.
    """
    row_id = F.struct("_partition", "_offset")
    # The text of a key with several columns is never null.
    is_keyed = F.lit(len(key) > 1) | F.col(key[0]).isNotNull()
    is_timeless = F.col("_timestamp_ms").isNull() | (F.col("_timestamp_ms") < 0)
    n, different, nulls, timeless, digest = read.agg(
        F.count(F.lit(1)),
        F.count_distinct(row_id),
        F.count_if(F.col("_partition").isNull() | F.col("_offset").isNull()),
        F.count_if(is_keyed & is_timeless),
        F.bit_xor(F.xxhash64(*_hashable(read))),
    ).collect()[0]
    if nulls or different != n:
        msg = "the columns of `order` must identify a row of the batch, got nulls or duplicates; choose others"
        raise InvalidArgument(msg)
    if timeless:
        msg = f"every update needs a record time, got {timeless} rows without a usable one; filter them out"
        raise InvalidTimestamp(msg)
    return f"{n}/{digest}"


def _hashable(read: DataFrame) -> list[Column]:
    """Returns the columns of *read*, those with maps as JSON, because Spark hashes no maps."""
    kinds = {field.name: field.dataType.simpleString() for field in read.schema}
    return [F.to_json(F.struct(name)) if "map<" in kind else F.col(name) for name, kind in kinds.items()]


def _answers(read: DataFrame, task: JudgeTask, key: Sequence[str], columns: Sequence[str]) -> list[ShardAnswer]:
    """Runs *task* on each shard of the updates *read*; returns the answers in the order of shards."""
    updates = read.mapInArrow(with_shards(tuple(key), tuple(columns), task.shards), SHARDED_DDL)
    nulls = [
        F.lit(None).cast(kind).alias(name) for name, kind in (column.split() for column in SHARDED_DDL.split(", ")[1:])
    ]
    # A row for every shard, so that also one without updates has a task.
    every_shard = read.sparkSession.range(task.shards, numPartitions=1).select(
        F.col("id").cast("int").alias("shard"), *nulls
    )
    answered = (
        updates.unionAll(every_shard)
        .repartitionById(task.shards, "shard")
        .mapInArrow(_judging(task), "shard int, answer binary")
    )
    try:
        answers = as_arrow(answered).sort_by("shard")["answer"].to_pylist()
    except PySparkException as error:
        if (lacks := LACKS.search(str(error))) is None:
            raise
        msg = (
            f"executors share the keys of {task.operator}, and their Python has no module {lacks[1]}; install the "
            f"wheel of Tidemark there, {IN_DRIVER}"
        )
        raise InvalidArgument(msg) from error
    return [pickle.loads(answer) for answer in answers]


def require_here(answers: Sequence[ShardAnswer], operator: str) -> None:
    """Raises InvalidArgument if the driver does not find a file that executors wrote."""
    # A folder of one machine has the same path on others. An object store is one for all.
    for file in (location(file.path) for answer in answers for file in answer.files.values()):
        if not isinstance(file, ObjectPath) and not file.exists():
            msg = (
                f"executors share the keys of {operator}, and wrote {file.name}, which the driver does not find in "
                f"{file.parent}; name a warehouse that all of them reach, {IN_DRIVER}"
            )
            raise InvalidArgument(msg)


def with_shards(key: Sequence[str], columns: Sequence[str], shards: int) -> Callable[[Batches], Batches]:
    """Returns a function for `mapInArrow` that turns rows into updates with their shard, of the schema SHARDED.

    The rows have the columns of *key* and the value's *columns*, `_timestamp_ms`, `_partition` and `_offset`.
    """

    def assign(batches: Batches) -> Iterator[pa.RecordBatch]:
        forget_archives()
        for batch in batches:
            rows = pl.DataFrame(pa.Table.from_batches([batch]))
            updates = rows.with_columns(_key=key_text(key, rows.schema), _deleted=pl.lit(value=False))
            valued = identified(with_value(updates, columns))
            sharded = valued.with_columns(shard=shard_of(updates["_key"].fill_null(""), shards))
            yield from sharded.select(SHARDED.names).to_arrow().cast(SHARDED).to_batches()

    return assign


def _judging(task: JudgeTask) -> Callable[[Batches], Batches]:
    """Returns a function for `mapInArrow` that runs *task* on the updates of one shard; the answer is pickled."""

    def judge(batches: Batches) -> Iterator[pa.RecordBatch]:
        forget_archives()
        rows = pl.DataFrame(pa.Table.from_batches([*batches]))
        shard = rows["shard"][0]
        answer = task(shard, rows.drop("shard").filter(pl.col("_offset").is_not_null()))
        yield pa.RecordBatch.from_pydict(
            {"shard": pa.array([shard], pa.int32()), "answer": pa.array([pickle.dumps(answer)], pa.binary())}
        )

    return judge


def _entry(batch_id: int, digest: str, answers: Sequence[ShardAnswer]) -> Entry:
    files: dict[str, list[File]] = {}
    for answer in answers:
        for name, file in answer.files.items():
            files.setdefault(name, []).append(file)
    counts = {name: sum(answer.counts[name] for answer in answers) for name in COUNTS}
    judged = JudgedNotes(digest=digest, counts=counts, states=tuple(answer.runs for answer in answers))
    tables = {name: Files(tuple(written)) for name, written in files.items()}
    return Entry(batch_id, tables, EntryNotes(judged=judged))
