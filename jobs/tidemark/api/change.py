"""Emit-on-change for rows inside a team's own `foreachBatch` function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.api.query import (
    Query,
    Writer,
    as_arrow,
    as_rows,
    hand_over,
    kept,
    operator_row,
    record_time_ms,
    write_about,
)
from tidemark.api.shards import ShardedState, left_out, other_rows
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, InvalidTimestamp
from tidemark.kernels.columns.schemas import rows_of
from tidemark.kernels.columns.values import key_text
from tidemark.kernels.updates.emission import STORED, JudgedUpdates, judged, with_value
from tidemark.kernels.updates.proofs import changes_rows, suppressed_rows
from tidemark.model.project.layout import Layout
from tidemark.model.project.spark_settings import is_local
from tidemark.model.tables.catalog import CHANGES, OPERATOR_BATCHES, SUPPRESSED
from tidemark.semantics.change import Rule
from tidemark.storage.delta.tables import read_before
from tidemark.storage.location import location
from tidemark.stream.state.keyed_rows import KeyedRows


class State:
    """The update of each key that *operator* sent on last.

    It is kept in the table `changes`, whose newest row of a key is the key's state. The state in memory is rebuilt from
    there whenever it is not that of the batch before: at the start, when a batch is run again, or when another process
    ran some. Create one per operator, outside of the function.

    Args:
        warehouse: folder of Tidemark's tables.
        topology: name under which reports show the query.
        sub_topology: name of the query.
        operator: name of the step that judges.
        rule: when an update counts as unchanged.
        shards: the number of Spark's tasks that share the keys, and keep their states in files; executors need this
            package then. 1: the driver has the keys. None: 1 in a local session; on a cluster the number of the newest
            batch. At first it is one for each core, from 2 to 32, of the executors that have registered when the first
            batch is judged: with dynamic allocation, name a number.
    """

    def __init__(
        self,
        *,
        warehouse: str | Path,
        topology: str,
        sub_topology: str,
        operator: str,
        rule: Rule = Rule.STRICTLY_NEWER,
        shards: int | None = None,
    ) -> None:
        if shards is not None and shards < 1:
            msg = f"a state has 1 or more shards, got {shards}; shards=1 keeps the keys in the driver"
            raise InvalidArgument(msg)
        self._query = Query(Layout(location(warehouse)), topology, sub_topology)
        self._operator, self._rule, self._shards = operator, rule, shards
        self._writer = self._new_writer()
        write_about(self._query, operator)
        self._stored = KeyedRows(STORED)
        self._batch_id: int | None = None

    def sharded(self, spark: SparkSession) -> ShardedState | None:
        """Returns the state in shards; None: the driver of *spark* has it."""
        # Keys of a local session are in this process anyway.
        if self._shards is None and is_local(str(spark.conf.get("spark.master"))):
            self._shards = 1
        return None if self._shards == 1 else ShardedState(self._query, self._operator, self._rule, self._shards)

    def judge(self, updates: pl.DataFrame, batch_id: int) -> JudgedUpdates:
        """Decides *updates* of a batch, given the batches before it.

        The state does not change yet.

        Raises:
            Contradiction: the batch was judged before, and sent other updates on then.
        """
        # After a start, a repeated batch, or a batch of another process the state in memory is of another batch.
        sent_before = self._load(batch_id) if self._batch_id != batch_id - 1 else None
        result = judged(updates, self._stored.look_up(updates["_key"]), self._rule)
        emitted = result.emitted.select(key="_key", value_hash="_identity")
        if sent_before is not None and not sent_before.equals(emitted):
            raise other_rows(self._query.table(CHANGES.name), batch_id, self._operator)
        return result

    def move(self, result: JudgedUpdates, batch_id: int, *, passed: int, began_ms: int) -> None:
        """Writes *result* into the tables and the state.

        *passed* rows of the batch were not judged. *began_ms* is the clock before that.
        """
        same = self._query.same(batch_id)
        counts = {"emitted": result.emitted.height, "suppressed": result.suppressed_n, "passed": passed}
        if any(counts.values()):
            tables = {
                CHANGES.name: rows_of(CHANGES, changes_rows(self._operator, result), **same),
                SUPPRESSED.name: rows_of(SUPPRESSED, suppressed_rows(self._operator, result), **same),
            }
            self._writer.append(tables, batch_id)
        self.count(counts, batch_id, began_ms=began_ms)
        self._stored.put(result.stored)
        self._batch_id = batch_id

    def count(self, counts: Mapping[str, int], batch_id: int, *, began_ms: int) -> None:
        """Writes the *counts* of updates by outcome, if there are any.

        If the operator is being measured, they go into its row. *began_ms* is the clock before the judgement.
        """
        if any(counts.values()) and not hand_over(self._query, self._operator, counts):
            row = operator_row(self._operator, counts, decided_at_ms=began_ms)
            rows = rows_of(OPERATOR_BATCHES, [row], **self._query.same(batch_id))
            self._writer.append({OPERATOR_BATCHES.name: rows}, batch_id)

    def _new_writer(self) -> Writer:
        return Writer(self._query, self._operator, wall_clock_ms)

    def _load(self, batch_id: int) -> pl.DataFrame | None:
        """Rebuilds the state before *batch_id*.

        Returns the updates that this batch sent on, if it was run before.
        """
        self._writer = self._new_writer()  # a new one reads which batches other processes have written
        self._writer.open(CHANGES.name, batch_id)
        columns = ["operator", "seq", "key", "value", "value_hash", "timestamp"]
        # The batch itself is included: it has rows here if it was run before.
        rows = read_before(self._query.table(CHANGES.name), batch_id + 1, columns)
        own_rows = rows.filter(pl.col("operator") == self._operator).sort("batch_id", "seq")
        before, sent = own_rows.filter(pl.col("batch_id") < batch_id), own_rows.filter(pl.col("batch_id") == batch_id)
        self._stored = KeyedRows(STORED)
        self._stored.put(
            before.select("key", "value", identity="value_hash", timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
        )
        self._batch_id = batch_id - 1
        return sent.select("key", "value_hash") if sent.height else None


@contextmanager
def changed(
    rows: DataFrame,
    batch_id: int,
    *,
    key: Sequence[str],
    columns: Sequence[str],
    timestamp: str,
    order: tuple[str, str],
    state: State,
) -> Iterator[DataFrame]:
    """Yields the *rows* that change their key, for a `with` block.

    Write them inside the block.

    Purpose: send on only what changed, prove each skip (`suppressed`), and never lose an update.

    How it works: the rows of a key are judged in *order* against the one sent on last, as a `table` of Tidemark does
    (`kernels/updates/change.py`). The state moves when the block ends without an error, which is after the output. Were
    it the other way round, a crash between the two would leave a state that takes the update for sent: the batch that
    is run again would suppress it, and no reader would ever get it. That is KAFKA-12508, for which Kafka reverted this
    feature. This way a crash leaves the state as it was, or the whole batch done; since a batch is always judged by the
    batches before it, running it again gives the same rows.

    What it does not do: make the output itself exactly-once. The batch that is run again writes the same rows again;
    whether that shows is up to the output (Delta: `txnAppId` and `txnVersion`).

    Known limitation: if *state* has one shard, key, columns, time and order of a batch pass through the driver, where
    they are judged; bound the batch (`maxOffsetsPerTrigger`). A batch must have the same rows when it is run again, as
    Spark demands of them too.

    Args:
        rows: of one batch.
        batch_id: its number, as `foreachBatch` gives it.
        key: the columns of the key. Rows whose single key column is null are sent on unjudged, and counted as `passed`.
        columns: the columns of the value; rows of equal values have equal ones of all of these, null being equal to
            null.
        timestamp: TIMESTAMP column with the record time.
        order: two integer columns that order the updates of a key, and identify a row: Kafka's partition and offset.
        state: the updates that were sent on before.

    Raises:
        InvalidTimestamp: a record has no time, or one before 1970, so that it cannot be judged; a guess could hide a
            later update. Filter such rows out before.
        InvalidArgument: *order* is null somewhere or names two rows, or *timestamp* is no TIMESTAMP.
        Contradiction: the batch comes before others that the state has seen, the checkpoint having been replaced; or it
            was run before with other rows. Either is detected before the block, and so before the output.
    """
    with kept(rows):
        began_ms = wall_clock_ms()
        read = _read(rows, key, columns, timestamp, order)
        if sharded := state.sharded(rows.sparkSession):
            entry = sharded.judge(read, batch_id, key, columns)
            files = left_out(entry)
            yield _without(rows, order, rows.sparkSession.read.parquet(*files)) if files else rows
            state.count(sharded.move(entry), batch_id, began_ms=began_ms)
            return
        records = _records(read, key, order)
        updates = _updates(records, columns, timestamp)
        result = state.judge(updates, batch_id)
        suppressed = updates.join(result.emitted, on=["_partition", "_offset"], how="anti")
        places = suppressed.select("_partition", "_offset").to_arrow()
        some = F.broadcast(as_rows(places, rows.sparkSession)) if suppressed.height else None
        yield rows if some is None else _without(rows, order, some)
        # After the output: a crash in between runs the batch again. The other way round it would lose its updates.
        state.move(result, batch_id, passed=records.height - updates.height, began_ms=began_ms)


def _read(
    rows: DataFrame, key: Sequence[str], columns: Sequence[str], timestamp: str, order: tuple[str, str]
) -> DataFrame:
    """Returns the columns of *rows* that decide."""
    partition, offset = order
    return rows.select(
        *dict.fromkeys((*key, *columns)),
        record_time_ms(rows, timestamp).alias("_timestamp_ms"),
        F.col(partition).cast("int").alias("_partition"),
        F.col(offset).cast("bigint").alias("_offset"),
    )


def _records(read: DataFrame, key: Sequence[str], order: tuple[str, str]) -> pl.DataFrame:
    """Returns the rows *read* in order, on the driver.

    It refuses rows that cannot be judged.
    """
    partition, offset = order
    records = pl.DataFrame(as_arrow(read)).sort("_partition", "_offset")
    places = records.select("_partition", "_offset")
    if places.null_count().sum_horizontal().sum() or places.is_duplicated().any():
        msg = f"{partition} and {offset} must identify a row of the batch, got nulls or duplicates; choose others"
        raise InvalidArgument(msg)
    return records.with_columns(_key=key_text(key, records.schema), _task="_partition", _deleted=pl.lit(value=False))


def _updates(records: pl.DataFrame, columns: Sequence[str], timestamp: str) -> pl.DataFrame:
    """Returns the *records* that have a key, with their value."""
    keyed = records.filter(pl.col("_key").is_not_null())
    if timeless := keyed.filter(pl.col("_timestamp_ms").is_null() | (pl.col("_timestamp_ms") < 0)).height:
        msg = f"every update needs a record time, got {timeless} rows without a usable {timestamp}; filter them out"
        raise InvalidTimestamp(msg)
    return with_value(keyed, columns)


def _without(rows: DataFrame, order: tuple[str, str], left_out: DataFrame) -> DataFrame:
    """Returns *rows* without those *left_out*, by `_partition` and `_offset`."""
    same = [F.col(column) == F.col(f"_{name}") for column, name in zip(order, ("partition", "offset"), strict=True)]
    return rows.join(left_out, on=same, how="left_anti")
