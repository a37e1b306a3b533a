"""Writes a topology's tables as they are after many records, and checks its SLAs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.maintenance.retention import RetainedTable
from tidemark.maintenance.upkeep import CLOSED_AFTER_MS, _maintain
from tidemark.model.project.layout import CHANGES_OF, Layout
from tidemark.model.project.spark_settings import WITHOUT_SPARK
from tidemark.model.tables.catalog import (
    BATCHES,
    CHANGES,
    COUNTED,
    HEARTBEATS,
    LATENCY_MINUTES,
    OPERATOR_BATCHES,
    PARTITION_BATCHES,
    SUPPRESSED,
    Table,
)
from tidemark.storage.delta.current_view import KEPT_BY, kept_by
from tidemark.storage.delta.log import TableLog, add_action
from tidemark.storage.delta.tables import Committer, create
from tidemark.storage.fence import Fence
from tidemark.storage.files import MERGED, stats_of, write_parquet

TOPOLOGY = """
name = "grown"
level = "info"

[operators.readings]
kind = "source"
topic = "readings"
fields = "id string, amount bigint, at bigint"
timestamp = "at"
bound = "3 s"

[operators.latest]
kind = "table"
input = "readings"
key = ["id"]

[operators.board]
kind = "sink"
input = "latest"
table = "board"
mode = "current"
key = ["id"]
"""
SLA = """
[grown.{name}]
measure = "{measure}"
subject = "{subject}"
{limit}
owner = "o"
"""
TEN_MINUTES = 'error_after = "10 min"'
MEASURES = {
    "staleness": ("board", TEN_MINUTES),
    "latency_p50": ("board", TEN_MINUTES),
    "latency_p90": ("board", TEN_MINUTES),
    "latency_p99": ("board", TEN_MINUTES),
    "operator_latency_p50": ("latest", TEN_MINUTES),
    "watermark_lag": ("readings", TEN_MINUTES),
    "records": ("readings", "error_below = 1"),
    "quarantined_share": ("readings", "error_above = 0.5"),
    "completeness": ("outcomes", 'error_after = "1 ms"'),
    "contract": ("tables", ""),
}
SUB = "readings"
SLAS = 20
BATCH, EVERY_MS = 10_000, 10_000
"""Records of a batch, and ms from batch to batch."""
FILE = 1_000_000
"""Most rows of a file that maintenance leaves."""
RECORDS_OF_A_KEY = 10
NEWS = 60
"""Batches from check to check."""
BOARD = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("amount", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("batch_id", pa.int64()),
        pa.field("source_partition", pa.int32()),
        pa.field("source_offset", pa.int64()),
    ]
)
CHECK = """
import gc, json, sys, time
from pathlib import Path
import tidemark.allocator
gc.disable()
from tidemark.sla.check import run
gc.freeze()
gc.enable()
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import load_usable
from tidemark.model.topology import load

def memory_mb(word):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(word))
    return int(line.split()[1]) / 1024

folder, at_ms, run_id = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
topology = load(folder / "grown.toml")
specs = load_usable(folder / "slas.toml", topology).specs
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
imports_mb, imports_s = memory_mb("VmRSS"), time.process_time()
run(Layout(folder / "warehouse"), topology, specs, at_ms=at_ms, run_id=run_id)
print(json.dumps([time.process_time() - imports_s, memory_mb("VmHWM") - imports_mb, imports_s, imports_mb]))
"""


class Cost(NamedTuple):
    """What a check costs beyond its imports, and these: CPU s and peak memory."""

    cpu_s: float
    memory_mb: float
    imports_s: float
    imports_mb: float


@dataclass(frozen=True)
class Grown:
    """A stream's tables under *folder* after *records*, the last of which came at *now_ms*."""

    folder: Path
    records: int
    now_ms: int

    @property
    def batches(self) -> int:
        """The number of batches."""
        return self.records // BATCH

    @property
    def keys(self) -> int:
        """The number of keys of `board`."""
        return self.records // RECORDS_OF_A_KEY

    def write(self) -> None:
        """Writes all records into files as maintenance leaves them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "grown.toml").write_text(TOPOLOGY)
        slas = []
        for number in range(SLAS):
            measure = [*MEASURES][number % len(MEASURES)]
            subject, limit = MEASURES[measure]
            slas.append(SLA.format(name=f"{measure}_{number}", measure=measure, subject=subject, limit=limit))
        (self.folder / "slas.toml").write_text("".join(slas))
        create(self._path("board"), BOARD)
        changes = BOARD.append(pa.field("deleted", pa.bool_()))
        create(self._path(f"{CHANGES_OF}board"), changes, properties={KEPT_BY: kept_by(["id"], None)})
        for first in range(0, self.keys, FILE):
            rows = self._board(range(first, min(first + FILE, self.keys)), 0)
            self._add("board", rows, 0, self.now_ms, prefix=MERGED)
        step = FILE // BATCH
        for first in range(0, self.batches, step):
            self._add_batches(range(first, min(first + step, self.batches)))
        for path in Layout(self.folder / "warehouse").stream("grown", SUB).iterdir():
            # One file a day of tables with few rows.
            _maintain(RetainedTable(path=path, retention_ms=None), now_ms=self.now_ms, closed_after_ms=CLOSED_AFTER_MS)

    def goes_on(self) -> Grown:
        """Writes NEWS batches, each as one file, and merges them into `board`. Returns the tables as they are then."""
        later = Grown(self.folder, self.records + NEWS * BATCH, self.now_ms + NEWS * EVERY_MS)
        for batch in range(self.batches, later.batches):
            later._add_batches(range(batch, batch + 1))
        newest = later.batches - 1
        rows = later._board(range(0, self.keys, max(1, self.keys // (NEWS * BATCH // 2))), newest)
        new = rows.append_column("deleted", pa.array([False] * rows.num_rows))
        later._add(f"{CHANGES_OF}board", new, newest, later.now_ms)
        committer = Committer(f"grown/{SUB}", Fence(clock=lambda: later.now_ms))
        committer.upsert(self._path("board"), new, newest, key=["id"])
        return later

    def check(self, run_id: str, *, later_ms: int = 0) -> Cost:
        """Checks the SLAs at the newest batch, or *later_ms* after it."""
        at_ms = self.now_ms + 1 + later_ms
        command = [sys.executable, "-W", "ignore", "-c", CHECK, str(self.folder), str(at_ms), run_id]
        of_airflow = {**os.environ, WITHOUT_SPARK: "1"}
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=of_airflow)
        return Cost(*json.loads(ran.stdout.splitlines()[-1]))

    def _path(self, table: str) -> Path:
        return Layout(self.folder / "warehouse").stream_table("grown", SUB, table)

    def _add(self, table: str, rows: pa.Table, batch_id: int, written_ms: int, *, prefix: str = "part-") -> None:
        path = self._path(table)
        file = path / f"{prefix}{uuid.uuid4().hex}.parquet"
        size = write_parquet(file, rows)
        action = add_action(file.name, size, written_ms, json.dumps(stats_of(pl.DataFrame(rows))))
        TableLog(path, f"grown/{SUB}/{table}").append([action], batch_id, {"batch_id": str(batch_id)})

    def _board(self, keys: range, batch_id: int) -> pa.Table:
        """Returns rows of `board` that *batch_id* wrote."""
        at = pl.lit(self.now_ms).cast(pl.Datetime("ms", "UTC"))
        rows = pl.select(i=pl.int_range(keys.start, keys.stop, keys.step)).select(
            id=pl.format("sensor-{}", "i"),
            amount="i",
            timestamp=at,
            batch_id=pl.lit(batch_id),
            source_partition=0,
            source_offset="i",
        )
        return rows.to_arrow().cast(BOARD)

    def _add_batches(self, batches: range) -> None:
        """Adds a file of *batches* to each table of facts and outputs, `batches` last."""
        last = batches.stop - 1
        written_ms = self._finished_ms(last)
        for table, rows in self._rows(batches):
            path = self._path(table.name)
            if not path.exists():
                create(path, arrow_schema(table))
            self._add(table.name, rows_of(table, rows), last, written_ms)

    def _finished_ms(self, batch: Any) -> Any:
        return self.now_ms - (self.batches - 1 - batch) * EVERY_MS

    def _rows(self, batches: range) -> Iterator[tuple[Table, pl.DataFrame]]:
        of_stream = {"topology": pl.lit("grown"), "sub_topology": pl.lit(SUB)}
        at = self._finished_ms(pl.col("batch_id"))
        of_batch = {**of_stream, "decided_at": at}
        batch = pl.select(batch_id=pl.int_range(batches.start, batches.stop))
        record = pl.select(i=pl.int_range(batches.start * BATCH, batches.stop * BATCH))
        record = record.with_columns(batch_id=pl.col("i") // BATCH, operator=pl.lit("latest"), source_partition=0)
        record = record.with_columns(**of_batch, key=pl.format("sensor-{}", pl.col("i") // RECORDS_OF_A_KEY))
        # Every other update is unchanged.
        changed, unchanged = record.filter(pl.col("i") % 2 == 0), record.filter(pl.col("i") % 2 == 1)
        value = {
            "value": pl.concat_str(pl.lit('{"amount": '), "i", pl.lit("}")),
            "value_hash": pl.col("i").hash().cast(pl.String),
        }
        place = {"seq": pl.col("i") % BATCH, "source_offset": pl.col("i"), "timestamp": at}
        yield CHANGES, changed.with_columns(**value, **place).drop("i")
        proof = {"n": pl.lit(1), "first_offset": pl.col("i"), "last_offset": pl.col("i"), "max_timestamp": at}
        yield SUPPRESSED, unchanged.with_columns(**proof).drop("i")
        yield OPERATOR_BATCHES, batch.join(pl.DataFrame(_OUTCOMES), how="cross").with_columns(**of_batch, newest_ms=at)
        sources = pl.DataFrame({"source": ["readings", "readings", None], "partition": [0, None, None]})
        moved = {**of_batch, "watermark": at - 3_000, "activity": pl.lit("active")}
        yield PARTITION_BATCHES, batch.join(sources, how="cross").with_columns(**moved)
        measured = {"operator": pl.lit("board"), "kind": pl.lit("sink"), "task_id": pl.lit("grown_0")}
        measured |= {"finished_at": at, "window_start": at // EVERY_MS * EVERY_MS}
        yield (
            LATENCY_MINUTES,
            batch.with_columns(**of_batch, **measured).with_columns(
                n=pl.lit(BATCH), negative_n=pl.lit(0), buckets=pl.Series([[{"bucket": 300, "n": BATCH}]] * len(batch))
            ),
        )
        beats = batch.with_columns(**of_stream, beat_at=at, epoch=pl.lit(1), state=pl.lit("running"))
        yield HEARTBEATS, beats.drop("batch_id")
        finished = {"started_at": at - 500, "finished_at": at, "duration_ms": pl.lit(500), "records_in": pl.lit(BATCH)}
        yield BATCHES, batch.with_columns(**of_batch, **finished, level=pl.lit("info"), epoch=pl.lit(1))


def _outcomes(operator: str, kind: str, **counts: int) -> Mapping[str, Any]:
    return {"operator": operator, "kind": kind, **dict.fromkeys(COUNTED, 0), **counts}


_OUTCOMES = [
    _outcomes("readings", "source", records_in=BATCH, passed=BATCH),
    _outcomes("latest", "table", records_in=BATCH, emitted=BATCH // 2, suppressed=BATCH // 2),
    _outcomes("board", "sink", records_in=BATCH // 2, passed=BATCH // 2),
]
"""Rows of `operator_batches` for each batch, without its number."""
