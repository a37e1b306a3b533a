"""Measures what recording and supervising an unchanged job costs its batches."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.ratios import Figure, by_turns, ratios
from bench.shards import cpu_s

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.spark_session import session

BATCHES = 30
WARM_UP = 6
"""First batches of a turn, which are not counted.

Spark plans them for longer, and the listener makes its tables.
"""
SMALL, LARGE = 5_000, 50_000
"""Records of a batch; the target is for the large one.

A small one has little but Spark's fixed costs, and their variation hides 3 %.
"""
TURNS = 2
"""Turns of each side in a run."""
LOOK_S = 0.05
"""Pause between two looks for a batch of 0.5 s and more."""
SUPERVISED, ALONE = "supervised", "alone"
JOB = """
import sys
from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
orders = SparkSession.builder.getOrCreate().readStream.schema("id long, at timestamp, amount long")
marked = orders.option("maxFilesPerTrigger", 1).json(feed).withWatermark("at", "10 seconds")
writer = marked.writeStream.queryName("orders").option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.format("delta").start(out).awaitTermination()
"""


class Used(NamedTuple):
    """Time and CPU of a turn, ms a batch.

    CPU is that of Spark and of this process.
    """

    time: float
    spark: float
    python: float


def figures(runs: int) -> Iterator[Figure]:
    """Yields times and CPU of batches, supervised and alone."""
    session("bench")
    for records in (SMALL, LARGE):
        with TemporaryDirectory() as folder:
            yield from _figures(Path(folder), records, TURNS * runs)


def _figures(home: Path, records: int, pairs: int) -> Iterator[Figure]:
    used: dict[str, list[Used]] = {SUPERVISED: [], ALONE: []}
    (home / "job.py").write_text(JOB)
    for n in range(BATCHES):
        _write(home / "feed", n, records)
    turns = count()

    def turn(side: str) -> float:
        used[side].append(_turn(home, next(turns), is_supervised=side == SUPERVISED))
        return used[side][-1].time

    sides = {side: partial(turn, side) for side in used}
    by_turns(sides, 2)  # they warm up, and make the tables
    for each in used.values():
        each.clear()
    found = by_turns(sides, pairs)
    of = f"batch of {records:,} records of an unchanged job"
    yield Figure(f"{of}, alone", found[ALONE], unit="ms")
    target = 1.03 if records == LARGE else None
    yield Figure("the same supervised and recorded, against that", ratios(found, *used), target, at_most=True)
    cpu = {side: [each.spark + each.python for each in turns] for side, turns in used.items()}
    yield Figure("CPU of that batch, the same", ratios(cpu, *used))
    python = [one.python - other.python for one, other in zip(*used.values(), strict=True)]
    yield Figure("Python's part of that", python, unit="ms")


def _write(feed: Path, n: int, records: int) -> None:
    feed.mkdir(exist_ok=True)
    lines = [json.dumps({"id": key, "at": 1_772_366_400 + 30 * n, "amount": key % 7}) for key in range(records)]
    (feed / f"{n}.json").write_text("\n".join(lines))
    os.utime(feed / f"{n}.json", (1_000 + n, 1_000 + n))  # Spark reads the oldest first


def _turn(home: Path, turn: int, *, is_supervised: bool) -> Used:
    """Runs the job; returns the means of its batches after WARM_UP.

    Their times are those between batches. So they have the commits of the listener, which are made every few batches.
    """
    job, checkpoint, table = home / "job.py", home / f"checkpoint_{turn}", home / f"table_{turn}"
    arguments = [str(each) for each in (home / "feed", table, checkpoint)]
    offsets, at = checkpoint / "offsets", dict[int, Used]()
    thread = threading.Thread(target=_look, args=(offsets, at), daemon=True)
    thread.start()
    if is_supervised:
        names = {"topology": "shop", "sub_topology": "job", "launch_id": "", "launched_by": ""}
        lease = {"warehouse": home / "warehouse", "take_over": False, "silent_after": 60.0}
        assert run_application(ApplicationOptions(application=job, argument=arguments, **names, **lease)) == 0
    else:
        sys.argv = [str(job), *arguments]
        runpy.run_path(str(job), run_name="__main__")
    thread.join()
    shutil.rmtree(table)
    return Used(*((last - first) / (BATCHES - 1 - WARM_UP) for first, last in zip(*at.values(), strict=True)))


def _look(offsets: Path, at: dict[int, Used]) -> None:
    """Notes time and CPU at two batches, ms.

    They are the first and the last that are counted.
    """
    for n in (WARM_UP, BATCHES - 1):
        while not (offsets / str(n)).exists():
            time.sleep(LOOK_S)
        all_ms, own_ms = cpu_s() * 1_000, time.process_time() * 1_000
        # The second line of an entry of Spark's log has the begin of its batch.
        at[n] = Used(
            json.loads((offsets / str(n)).read_text().splitlines()[1])["batchTimestampMs"], all_ms - own_ms, own_ms
        )
