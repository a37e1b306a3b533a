"""Emit-on-change for rows inside a team's own `foreachBatch` function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.api.query import (
    FactsWriter,
    Query,
    as_arrow,
    as_rows,
    hand_over,
    kept,
    operator_row,
    record_time_ms,
    write_about,
)
from tidemark.api.shards import ShardedState, other_rows, suppressed_files
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
    """For each key, the update that *operator* sent on last.

    The state is kept in the table `changes`, where the newest row of a key is the key's state. The copy in memory is
    rebuilt from there whenever it does not belong to the batch before: at the start, when a batch is run again, or when
    another process ran some. Create one state per operator, outside of the `foreachBatch` function.

    Args:
        warehouse: folder or bucket of Tidemark's tables.
        topology: name under which reports show the query.
        sub_topology: name of the query.
        operator: name of the step that decides what is sent on.
        rule: when an update counts as unchanged.
        shards: into how many parts the keys are divided. With 1 the driver keeps all keys. With more, so many of
            Spark's tasks share the keys and keep their states in files, for which the executors need this package. If
            you name no number, it is 1 in a local session. On a cluster it is then that of the newest batch, and in the
            first batch one for each core, from 2 to 32, of the executors that have registered by then; with dynamic
            allocation, name a number.

    Raises:
        InvalidArgument: a name cannot be used, or *shards* is below 1.
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
        """Returns the state divided into shards, or None if the driver of *spark* keeps all keys."""
        # Keys of a local session are in this process anyway.
        if self._shards is None and is_local(str(spark.conf.get("spark.master"))):
            self._shards = 1
        return None if self._shards == 1 else ShardedState(self._query, self._operator, self._rule, self._shards)

    def judge(self, updates: pl.DataFrame, batch_id: int) -> JudgedUpdates:
        """Decides which *updates* of a batch are sent on, given the batches before it. The state does not change yet.

        Raises:
            Contradiction: the batch was run before, and sent other updates on then.
        """
        # After a start, a repeated batch, or a batch of another process, memory has the state of some other batch.
        sent_before = self._load(batch_id) if self._batch_id != batch_id - 1 else None
        result = judged(updates, self._stored.look_up(updates["_key"]), self._rule)
        emitted = result.emitted.select(key="_key", value_hash="_identity")
        if sent_before is not None and not sent_before.equals(emitted):
            raise other_rows(self._query.table(CHANGES.name), batch_id, self._operator)
        return result

    def move(self, result: JudgedUpdates, batch_id: int, *, passed: int, began_ms: int) -> None:
        """Writes a decision into the tables and the state.

        Args:
            result: the decision.
            batch_id: the number of the batch.
            passed: how many rows of the batch have no key, so that they were sent on without a decision.
            began_ms: the driver's clock before the decision, epoch ms.
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
        """Writes how many updates of a batch had each outcome, if there were any.

        If `measured` measures the operator, the counts go into its row instead.

        Args:
            counts: the number of updates by outcome.
            batch_id: the number of the batch.
            began_ms: the driver's clock before the decision, epoch ms.
        """
        if any(counts.values()) and not hand_over(self._query, self._operator, counts):
            row = operator_row(self._operator, counts, decided_at_ms=began_ms)
            rows = rows_of(OPERATOR_BATCHES, [row], **self._query.same(batch_id))
            self._writer.append({OPERATOR_BATCHES.name: rows}, batch_id)

    def _new_writer(self) -> FactsWriter:
        return FactsWriter(self._query, self._operator, wall_clock_ms)

    def _load(self, batch_id: int) -> pl.DataFrame | None:
        """Rebuilds the state before the batch *batch_id*.

        Returns the updates that this batch sent on when it was run before, or None if it was not.
        """
        self._writer = self._new_writer()  # a new one reads which batches other processes have written
        self._writer.open(CHANGES.name, batch_id)
        columns = ["operator", "seq", "key", "value", "value_hash", "timestamp"]
        # The batch itself is included: it has rows here if it was run before.
        rows = read_before(self._query.table(CHANGES.name), batch_id + 1, columns)
        changes = rows.filter(pl.col("operator") == self._operator).sort("batch_id", "seq")
        before, sent = changes.filter(pl.col("batch_id") < batch_id), changes.filter(pl.col("batch_id") == batch_id)
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
    """Yields those of *rows* that change the state of their key; write them inside the `with` block.

    Purpose: send on only what changed, prove each skip (table `suppressed`), and never lose an update.

    How it works: the rows of a key are judged in *order* against the one sent on last, as a `table` of Tidemark does
    (`kernels/updates/change.py`). The state moves when the block ends without an error, which is after the output. If
    the state moved first, a crash before the output would leave a state that counts the update as sent: the batch that
    is run again would suppress it, and no reader would ever get it. That is KAFKA-12508, for which Kafka reverted this
    feature. As it is, a crash leaves either the state as it was or the whole batch done. A batch is always judged by
    the batches before it, so running it again gives the same rows.

    What it does not do: make the output itself exactly-once. The batch that is run again writes the same rows again;
    whether that shows is up to the output (Delta: `txnAppId` and `txnVersion`).

    Known limitation: if *state* has one shard, key, columns, time and order of a batch pass through the driver, where
    they are judged; bound the batch (`maxOffsetsPerTrigger`). A batch must have the same rows when it is run again, as
    Spark demands of them too.

    Args:
        rows: the rows of one batch.
        batch_id: its number, as `foreachBatch` gives it.
        key: the columns of the key. If the key is one column, rows in which it is null are sent on without a decision,
            and counted as `passed`.
        columns: the columns of the value. Two values are equal if all of these columns are, null being equal to null.
        timestamp: TIMESTAMP column with the record time.
        order: two integer columns that order the updates of a key, and identify a row: Kafka's partition and offset.
        state: the updates that were sent on before.

    Raises:
        InvalidTimestamp: a record has no time, or one before 1970, so that it cannot be judged; a guess could hide a
            later update. Filter such rows out before.
        InvalidArgument: *order* is null somewhere or names two rows, or *timestamp* is no TIMESTAMP.
        Contradiction: the state has seen later batches, because the checkpoint was replaced; or the batch was run
            before with other rows. Both are detected before the block, and so before the output.
    """
    with kept(rows):
        began_ms = wall_clock_ms()
        read = _read(rows, key, columns, timestamp, order)
        if sharded := state.sharded(rows.sparkSession):
            entry = sharded.judge(read, batch_id, key, columns)
            files = suppressed_files(entry)
            yield _without(rows, order, rows.sparkSession.read.parquet(*files)) if files else rows
            state.count(sharded.move(entry), batch_id, began_ms=began_ms)
            return
        records = _records(read, key, order)
        updates = _updates(records, columns, timestamp)
        result = state.judge(updates, batch_id)
        suppressed = updates.join(result.emitted, on=["_partition", "_offset"], how="anti")
        row_ids = suppressed.select("_partition", "_offset").to_arrow()
        to_drop = F.broadcast(as_rows(row_ids, rows.sparkSession)) if suppressed.height else None
        yield rows if to_drop is None else _without(rows, order, to_drop)
        # After the output: a crash in between runs the batch again. If the state moved first, its updates would be
        # lost.
        state.move(result, batch_id, passed=records.height - updates.height, began_ms=began_ms)


def _read(
    rows: DataFrame, key: Sequence[str], columns: Sequence[str], timestamp: str, order: tuple[str, str]
) -> DataFrame:
    """Returns the columns of *rows* that the decision needs: key, value, record time and order."""
    partition, offset = order
    return rows.select(
        *dict.fromkeys((*key, *columns)),
        record_time_ms(rows, timestamp).alias("_timestamp_ms"),
        F.col(partition).cast("int").alias("_partition"),
        F.col(offset).cast("bigint").alias("_offset"),
    )


def _records(read: DataFrame, key: Sequence[str], order: tuple[str, str]) -> pl.DataFrame:
    """Returns the rows *read* on the driver, in order; refuses rows without an identity of their own.

    Raises:
        InvalidArgument: the columns of *order* are null somewhere, or name two rows.
    """
    partition, offset = order
    records = pl.DataFrame(as_arrow(read)).sort("_partition", "_offset")
    row_ids = records.select("_partition", "_offset")
    if row_ids.null_count().sum_horizontal().sum() or row_ids.is_duplicated().any():
        msg = f"{partition} and {offset} must identify a row of the batch, got nulls or duplicates; choose others"
        raise InvalidArgument(msg)
    return records.with_columns(_key=key_text(key, records.schema), _task="_partition", _deleted=pl.lit(value=False))


def _updates(records: pl.DataFrame, columns: Sequence[str], timestamp: str) -> pl.DataFrame:
    """Returns the *records* that have a key, with their value; refuses those without a record time.

    Raises:
        InvalidTimestamp: a record has no time, or one before 1970.
    """
    keyed = records.filter(pl.col("_key").is_not_null())
    if timeless := keyed.filter(pl.col("_timestamp_ms").is_null() | (pl.col("_timestamp_ms") < 0)).height:
        msg = f"every update needs a record time, got {timeless} rows without a usable {timestamp}; filter them out"
        raise InvalidTimestamp(msg)
    return with_value(keyed, columns)


def _without(rows: DataFrame, order: tuple[str, str], to_drop: DataFrame) -> DataFrame:
    """Returns *rows* without those whose `_partition` and `_offset` are in *to_drop*."""
    is_same = [F.col(column) == F.col(f"_{name}") for column, name in zip(order, ("partition", "offset"), strict=True)]
    return rows.join(to_drop, on=is_same, how="left_anti")
