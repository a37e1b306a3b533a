"""Provides the records of a contest, and the rows to emit.

A record is a JSON object of about 150 bytes: `id`, the values `status`, `amount` and `note`, and its instant `at`, in
epoch ms. Each has another instant, in the order of its partition.
"""

from __future__ import annotations

from enum import Enum

import duckdb
import numpy as np
import polars as pl
from confluent_kafka import Producer

PARTITIONS, KEYS, CHANGED = 4, 20_000, 0.15
SEED, NOON_MS = 20261127, 1_700_000_000_000
PATIENCE_S = 300
SENT_AT_ONCE = 100_000
TYPES = {"id": pl.String, "status": pl.String, "amount": pl.Int64, "note": pl.String, "at": pl.Int64}
"""Columns of an emitted row."""
_SHAPE = '\'{"id": "VARCHAR", "status": "VARCHAR", "amount": "BIGINT", "note": "VARCHAR", "at": "BIGINT"}\''


class Expected(Enum):
    """Rows that a peer has to emit, as a condition of DuckDB."""

    CHANGES = 'lag("at") over newer is null or (status, amount, note) <> lag((status, amount, note)) over newer'
    """First records of keys, and those with another value than before."""
    ALL = "count(*) over newer > 0"
    LAST = 'lead("at") over newer is null'
    """The last record of each key."""

    def rows(self, values: pl.Series) -> pl.DataFrame:
        """Returns the rows to emit for the JSON texts *values*, by `at`."""
        query = f"""
            with parsed as (select unnest(from_json(value, {_SHAPE})) from records)
            select id, status, amount, note, "at" from parsed
            window newer as (partition by id order by "at") qualify {self.value} order by "at"
        """
        with duckdb.connect() as connection:
            connection.register("records", pl.DataFrame({"value": values}).to_arrow())
            return connection.execute(query).pl()


def records_of(number: int, keys: int = KEYS) -> pl.DataFrame:
    """Returns *number* records: `partition`, `key` and `value`, in order.

    They are the same at each call. A record has another value than the last one of its key with the chance CHANGED.
    """
    chance = np.random.default_rng(SEED)
    drawn = pl.DataFrame({"n": chance.integers(0, keys, number), "changed": chance.random(number) < CHANGED})
    revision = pl.col("changed").cast(pl.Int64).cum_sum().over("n")
    key = pl.format("key-{}", pl.col("n").cast(pl.String).str.zfill(8))
    update = pl.struct(
        id=key,
        status=pl.format("status {}", revision),
        amount=pl.col("n") * 7 + revision,
        note=pl.format("news about {}, at some length, in its revision {}", key, revision),
        at=NOON_MS + pl.int_range(pl.len()),
    )
    return drawn.select(partition=pl.col("n") % PARTITIONS, key=key, value=update.struct.json_encode())


def send(address: str, topic: str, records: pl.DataFrame) -> None:
    """Appends *records* to *topic*; returns when the broker has them."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * SENT_AT_ONCE,
        }
    )
    for part in records.iter_slices(SENT_AT_ONCE):
        for partition, key, value in part.iter_rows():
            producer.produce(topic, value, key, partition)
        assert producer.flush(PATIENCE_S) == 0
