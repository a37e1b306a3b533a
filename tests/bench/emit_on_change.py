"""Compares 100,000 updates per batch, a tenth changed, with a MERGE."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
from bench.ratios import Figure, by_turns, ratios
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from support.quiet_broker import Silence
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.spark_session import session
from tidemark.stream.wiring import build_engine
from tidemark.testing.rows import PARSED

UPDATES, CHANGES = 100_000, 10_000
LOADED_AT_ONCE = 250_000
NOON_MS = 1_700_000_000_000
TOPOLOGY = """
name = "bench"
level = "{level}"
window = "60 s"

[operators.updates]
kind = "source"
topic = "updates"
fields = "id string, status string, amount bigint, note string"
bound = "3 s"

[operators.latest]
kind = "table"
input = "updates"
key = ["id"]
"""


def figures(runs: int) -> Iterator[Figure]:
    """Compares both sides at one and at five million keys."""
    spark = session("bench")
    batch_s: dict[int, list[float]] = {}
    for million, factor in ((1, 5), (5, 10)):
        with TemporaryDirectory() as folder:
            feeds = [Feed(million * 1_000_000) for _ in range(2)]  # alike, one each: both sides take in every batch
            ours, theirs = Ours(spark, Path(folder), feeds[0]), Merge(spark, Path(folder), feeds[1])
            found = by_turns({"ours": ours.batch, "merge": theirs.batch}, runs + 1)
            found = {side: values[1:] for side, values in found.items()}  # the first one warms up
            batch_s[million] = found["ours"]
            keys = f"{million} million keys"
            yield Figure(f"emit on change, {keys}: a MERGE takes … as long", ratios(found, "merge", "ours"), factor)
            yield Figure(f"emit on change, {keys}: seconds per batch", found["ours"], unit="s")
            yield Figure(
                f"emit on change, {keys}: bytes written per byte of changes",
                ours.bytes_per_payload[1:],
                1.2,
                at_most=True,
            )
            yield Figure(f"emit on change, {keys}: bytes in the ledger per skip", ours.bytes_per_skip[1:], unit="bytes")
    growth = [five / one for one, five in zip(batch_s[1], batch_s[5], strict=True)]
    yield Figure("emit on change: a batch with 5 million keys against 1 million", growth, 1.3, at_most=True)


@dataclass
class Feed:
    """Generates updates of *keys*: the values, then repetitions and changes."""

    keys: int
    updates: int = UPDATES
    changes: int = CHANGES
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(20261121))

    def __post_init__(self) -> None:
        self._said = np.zeros(self.keys, dtype=np.int64)

    def first(self) -> Iterator[pl.DataFrame]:
        """All keys, once."""
        for start in range(0, self.keys, LOADED_AT_ONCE):
            yield self._updates(np.arange(start, min(self.keys, start + LOADED_AT_ONCE)))

    def next(self) -> tuple[pl.DataFrame, int]:
        """Returns a batch, and the bytes of its changes.

        They are key, JSON value and timestamp.
        """
        asked = self.chance.choice(self.keys, self.updates, replace=False)
        changed = asked[: self.changes]
        self._said[changed] += 1
        payload = self._updates(changed)
        value = payload.select(pl.struct("status", "amount", "note").struct.json_encode().str.len_bytes().sum()).item()
        return self._updates(asked), value + payload["id"].str.len_bytes().sum() + 8 * self.changes

    def _updates(self, ids: np.ndarray) -> pl.DataFrame:
        frame = pl.DataFrame({"n": ids, "said": self._said[ids]})
        return frame.select(
            id=pl.format("key-{}", pl.col("n").cast(pl.String).str.zfill(8)),
            status=pl.format("status {}", "said"),
            amount=pl.col("n") * 7 + pl.col("said"),
            note=pl.format("what was said of {}, at some length: {}", (pl.col("n") * 2654435761) % 1_000_003, "said"),
        )


class Ours:
    """The engine, as `foreachBatch` calls it."""

    def __init__(self, spark: SparkSession, folder: Path, feed: Feed, *, level: str = "trace", more: str = "") -> None:
        self._spark, self._feed, self._home = spark, feed, folder / "ours"
        folder.mkdir(exist_ok=True)
        self._files = folder / "batch"
        parsed = parse(tomllib.loads(TOPOLOGY.format(level=level) + more), file="bench.toml")
        topology = replace(parsed, facts_every_ms=0)  # a batch pays for all that it brings
        (sub,) = topology.sub_topologies
        self.stream = Stream(topology, sub, Layout(self._home))
        self._broker = Silence()
        self.engine = build_engine(self.stream, self._broker, thread_id="bench", epoch=1, slow_ms={})
        self._batch_ids, self._offset = count(), 0
        self._journalled: dict[str, int] = {}
        self._schema: StructType | None = None
        self.bytes_per_payload: list[float] = []
        self.bytes_per_skip: list[float] = []
        for updates in feed.first():
            self._run(updates)

    def batch(self) -> float:
        """Measures the next batch from Spark's frame to the last commit, s."""
        updates, payload = self._feed.next()
        before = self._sizes()
        seconds = self._run(updates)
        written = {place: size - before.get(place, 0) for place, size in self._sizes().items()}
        ledger = written.pop("suppressed", 0)
        self.bytes_per_payload.append(sum(written.values()) / payload)
        self.bytes_per_skip.append(ledger / (self._feed.updates - self._feed.changes))
        return seconds

    def _run(self, updates: pl.DataFrame) -> float:
        at_ms = NOON_MS + self._offset
        rows = updates.select(
            source=pl.lit("updates"),
            partition=pl.lit(0, pl.Int32),
            offset=pl.int_range(self._offset, self._offset + pl.len()),
            key=pl.col("id").cast(pl.Binary),
            value=pl.lit(None, pl.Binary),
            headers=pl.lit(None, PARSED["headers"]),
            deleted=False,
            timestamp_ms=at_ms + pl.int_range(pl.len()) % 1_000,
            reason=pl.lit(None, pl.String),
            updates=pl.struct("id", "status", "amount", "note"),
        )
        _in_two_files(rows, self._files)
        self._offset += updates.height
        self._broker.have("updates", [{"partition": 0, "offset": self._offset - 1}])
        self._schema = self._schema or self._spark.read.parquet(str(self._files)).schema
        frame = self._spark.read.schema(self._schema).parquet(str(self._files))
        started = time.perf_counter()
        self.engine.process(next(self._batch_ids), lambda: pl.DataFrame(frame.toArrow()), planned_at_ms=at_ms + 2_000)
        return time.perf_counter() - started

    def _sizes(self) -> dict[str, int]:
        """Bytes written so far, by table; and to the journal, which forgets."""
        tables = {path.parent.name: _bytes(path.parent) for path in self.stream.home.glob("*/_delta_log")}
        self._journalled |= {file.name: file.stat().st_size for file in (self.stream.control / "journal").glob("*.zip")}
        return {**tables, "journal": sum(self._journalled.values())}


class Merge:
    """A Delta table that is merged with every update."""

    def __init__(self, spark: SparkSession, folder: Path, feed: Feed) -> None:
        self._spark, self._feed, self._table = spark, feed, str(folder / "merged")
        self._files = folder / "merge"
        for updates in feed.first():
            self._frame(updates).write.format("delta").mode("append").save(self._table)

    def batch(self) -> float:
        """The seconds that the next batch takes."""
        updates, _ = self._feed.next()
        frame = self._frame(updates)
        started = time.perf_counter()
        merging = DeltaTable.forPath(self._spark, self._table).alias("old").merge(frame.alias("new"), "old.id = new.id")
        merging.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        return time.perf_counter() - started

    def _frame(self, updates: pl.DataFrame) -> DataFrame:
        _in_two_files(updates, self._files)
        return self._spark.read.parquet(str(self._files))


def _in_two_files(rows: pl.DataFrame, folder: Path) -> None:
    """A task for each, as of a topic with two partitions."""
    folder.mkdir(exist_ok=True)
    for number, half in enumerate(rows.iter_slices(-(-rows.height // 2))):
        half.write_parquet(folder / f"{number}.parquet")


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
