"""Measures what recording and supervising an unchanged job costs its batches."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ratios import Figure, by_turns, ratios
from bench.shards import cpu_s

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.spark_session import session

BATCHES, RECORDS = 24, 5_000
WARM_UP = 4
"""First batches of a turn, which are not counted.

Spark plans them for longer.
"""
TURNS = 2
"""Turns of each side in a run."""
JOB = """
import sys
from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
orders = SparkSession.builder.getOrCreate().readStream.schema("id long, at timestamp, amount long")
marked = orders.option("maxFilesPerTrigger", 1).json(feed).withWatermark("at", "10 seconds")
writer = marked.writeStream.queryName("orders").option("checkpointLocation", checkpoint).trigger(availableNow=True)
writer.format("delta").start(out).awaitTermination()
"""


def figures(runs: int) -> Iterator[Figure]:
    """Yields batch times of a job, supervised and alone."""
    session("bench")
    cpu: dict[str, list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        home, turns = Path(folder), count()
        (home / "job.py").write_text(JOB)
        for n in range(BATCHES):
            _write(home / "feed", n)

        def turn(side: str) -> float:
            began_s = cpu_s()
            batch_ms = _batch_ms(home, next(turns), is_supervised=side == "supervised")
            cpu[side].append(cpu_s() - began_s)
            return batch_ms

        sides = {side: partial(turn, side) for side in ("supervised", "alone")}
        by_turns(sides, 1)  # it warms up, and makes the tables
        cpu.clear()
        found = by_turns(sides, TURNS * runs)
    yield Figure("batch of an unchanged job alone", found["alone"], unit="ms")
    against = ratios(found, "supervised", "alone")
    yield Figure("the same supervised and recorded, against that", against, 1.03, at_most=True)
    yield Figure(
        f"CPU of a job of {BATCHES} batches, its start and end too, the same", ratios(cpu, "supervised", "alone")
    )


def _write(feed: Path, n: int) -> None:
    feed.mkdir(exist_ok=True)
    lines = [json.dumps({"id": key, "at": 1_772_366_400 + 30 * n, "amount": key % 7}) for key in range(RECORDS)]
    (feed / f"{n}.json").write_text("\n".join(lines))
    os.utime(feed / f"{n}.json", (1_000 + n, 1_000 + n))  # Spark reads the oldest first


def _batch_ms(home: Path, turn: int, *, is_supervised: bool) -> float:
    """Runs the job; returns the mean time between batches, ms.

    The mean has the commits of the listener, which are made every few batches.
    """
    job, checkpoint = home / "job.py", home / f"checkpoint_{turn}"
    arguments = [str(each) for each in (home / "feed", home / f"table_{turn}", checkpoint)]
    if is_supervised:
        names = {"topology": "shop", "sub_topology": "job", "launch_id": "", "launched_by": ""}
        lease = {"warehouse": home / "warehouse", "take_over": False, "silent_after": 60.0}
        assert run_application(ApplicationOptions(application=job, argument=arguments, **names, **lease)) == 0
    else:
        sys.argv = [str(job), *arguments]
        runpy.run_path(str(job), run_name="__main__")
    # The second line of an entry of Spark's log has the begin of its batch.
    entries = [(checkpoint / "offsets" / str(n)).read_text().splitlines()[1] for n in range(WARM_UP, BATCHES)]
    began_ms = [json.loads(entry)["batchTimestampMs"] for entry in entries]
    return (began_ms[-1] - began_ms[0]) / (len(began_ms) - 1)
