"""Measures a task of a shard with millions of keys.

It measures the task's own memory, its CPU time and its first batch, with five million keys in four shards and with one
million. The task runs in a separate process without a JVM, as in a Spark worker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl
from bench.ratios import Figure
from bench.records import PARTITIONS, counted, raw_rows
from pyspark import cloudpickle

from support.quiet_broker import Silence
from support.separate_executors import Apart
from tidemark.model.stream import Stream
from tidemark.stream.journal.entries import Journal
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.read.sources import parsed_batch
from tidemark.stream.shards.resharding import remember
from tidemark.stream.shards.sharding import Sharding, sharding
from tidemark.stream.shards.tasks import ShardTask
from tidemark.stream.shards.totals import ShardResult
from tidemark.stream.state.files import KEYS, StateFiles
from tidemark.stream.state.memory import Tables
from tidemark.stream.wiring import build_engine

SHARDS, RECORDS = 4, 200_000
AT_ONCE = 250_000


def figures(runs: int) -> Iterator[Figure]:
    """Compares a task of four shards at five and one million keys."""
    found: dict[int, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for keys in (1_000_000, 5_000_000):
            stream = with_keys(Path(folder) / str(keys), keys, also=(0,))
            task = Path(folder) / f"{keys}.task"
            _first_task(stream, keys, task)
            found[keys] = [_in_a_process(task) for _ in range(runs)]
    few, many = found.values()
    yield Figure(
        "a task, 5 million keys in 4 shards: memory", [r["most_mb"] for r in many], 400, at_most=True, unit="MB"
    )
    yield Figure("of which before it had a state", [r["before_mb"] for r in many], unit="MB")
    yield Figure("5 million keys / 1 million: CPU of a batch", _ratios(many, few, "next_s"), 1.3, at_most=True)
    yield Figure("the same: CPU of a worker's first batch", _ratios(many, few, "first_s"), 1.3, at_most=True)
    yield Figure("a worker's first batch of 50,000 records", [r["first_s"] for r in many], unit="s CPU")
    yield Figure("its next", [r["next_s"] for r in many], unit="s CPU")


def _ratios(above: list[dict[str, float]], below: list[dict[str, float]], name: str) -> list[float]:
    return [one[name] / other[name] for one, other in zip(above, below, strict=True)]


def with_keys(home: Path, keys: int, *, shards: int = SHARDS, also: Iterable[int] | None = None) -> Stream:
    """Creates a stream in *shards* with states of *keys*.

    They are in those *also* given (None: in all).
    """
    one, stream = (counted(home, n) for n in (1, shards))
    build_engine(one, Silence(PARTITIONS), thread_id="t", epoch=1, slow_ms={}).process(
        0, lambda: parsed_batch(raw_rows(0, 1_000, keys), one.sub.operators)
    )
    journal = Journal(one.control / "journal", "data")
    newest = journal.newest()
    assert newest is not None
    steps = Steps(one.topology, Reference(one.layout.warehouse))
    (runs,) = newest.notes.decision.states
    StateFiles(one, journal).load(steps.memory, runs, 0)
    templates = {place: rows.head(1) for place, rows in steps.memory.whole().items()}
    dealt = sharding(stream.topology, stream.sub, Steps(stream.topology, Reference(stream.layout.warehouse)))
    assert dealt is not None
    states = [StateRuns(0)] * shards
    wanted = range(shards) if also is None else also
    for number, tables in _of_shards(dealt, templates, keys, shards, wanted).items():
        states[number] = StateFiles(stream, journal, number, shards).add_run(states[number], tables)
    remember(stream.control, states, check_lease=lambda: None)
    return stream


def _of_shards(dealt: Sharding, templates: Tables, keys: int, shards: int, wanted: Iterable[int]) -> dict[int, Tables]:
    """By *wanted* shard rows like those of *templates* for all *keys*."""
    parts: dict[int, dict[str, list[pl.DataFrame]]] = {number: {place: [] for place in templates} for number in wanted}
    for first in range(0, keys, AT_ONCE):
        numbers = pl.int_range(first, min(first + AT_ONCE, keys), eager=True)
        for place, template in templates.items():
            kind, _, operator = place.partition("/")
            rows = _like(template, KEYS[kind], numbers)
            placed = dealt.placed(shards, operator, rows, KEYS[kind])
            for number, own in parts.items():
                own[place].append(rows if placed is None else rows.filter(placed == number))
    return {number: {place: pl.concat(rows) for place, rows in own.items()} for number, own in parts.items()}


def _like(template: pl.DataFrame, text: str, numbers: pl.Series) -> pl.DataFrame:
    """Rows like the *template*, with the keys of *numbers*."""
    of = template[text].item()
    begins = of[: of.index("key-")] + "key-"
    ends = of[of.index("key-") + 4 :].lstrip("0123456789")
    rows = template.drop(text).select(pl.all().repeat_by(len(numbers)).list.explode())
    keys = pl.select(pl.concat_str(pl.lit(begins), numbers.cast(pl.String), pl.lit(ends)).alias(text))
    rows = rows.with_columns(keys[text])
    if "id" in rows.columns:
        rows = rows.with_columns(id=pl.concat_str(pl.lit("key-"), numbers.cast(pl.String)))
    return rows.select(template.columns)


class _Writes(Apart):
    """Writes the task of shard 0 to a file, too."""

    to: Path

    def _worked(self, working: ShardTask, number: int, dealt: list[bytes]) -> ShardResult:
        if number == 0:
            self.to.write_bytes(cloudpickle.dumps((working, dealt)))
        return super()._worked(working, number, dealt)


def _first_task(stream: Stream, keys: int, to: Path) -> None:
    engine = build_engine(stream, Silence(PARTITIONS), thread_id="t", epoch=2, slow_ms={})
    rows = parsed_batch(raw_rows(1, RECORDS, keys), stream.sub.operators)
    executors = _Writes(rows)
    executors.to = to
    engine.process(1, lambda: rows, {}, executors)
    (stream.control / "journal" / f"{1:020d}.data.zip").unlink()  # the task is done again as if it was not decided


def _in_a_process(task: Path) -> dict[str, float]:
    told = subprocess.run(
        [sys.executable, "-m", "bench.one_task", str(task)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(told.stdout)
    return found
