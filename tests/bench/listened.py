"""Measures what recording the batches of an unchanged query costs them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.ratios import Figure, by_turns, ratios
from pyspark.sql import SparkSession

from tidemark import api
from tidemark.spark_session import session

BATCHES, RECORDS = 12, 5_000


def figures(runs: int) -> Iterator[Figure]:
    """Time of a batch with a listener, against the same query without."""
    spark = session("bench")
    with TemporaryDirectory() as folder:
        home, turns = Path(folder), count()
        for n in range(BATCHES):
            _write(home / "feed", n)
        sides = {
            "listened": lambda: _batch_ms(spark, home, next(turns), is_listened=True),
            "alone": lambda: _batch_ms(spark, home, next(turns), is_listened=False),
        }
        found = by_turns(sides, runs + 1)
    found = {side: values[1:] for side, values in found.items()}  # the first turn warms up
    yield Figure("batch of an unchanged query", found["alone"], unit="ms")
    yield Figure("the same with a listener, against that", ratios(found, "listened", "alone"), 1.03, at_most=True)


def _write(feed: Path, n: int) -> None:
    feed.mkdir(exist_ok=True)
    lines = [json.dumps({"id": key, "at": 1_772_366_400 + 30 * n, "amount": key % 7}) for key in range(RECORDS)]
    (feed / f"{n}.json").write_text("\n".join(lines))
    os.utime(feed / f"{n}.json", (1_000 + n, 1_000 + n))  # Spark reads the oldest first


def _batch_ms(spark: SparkSession, home: Path, turn: int, *, is_listened: bool) -> float:
    """Runs all batches; returns the mean length of one, ms.

    The first two are left out. The mean has the commits of the listener, which are made every few batches.
    """
    rows = spark.readStream.schema("id long, at timestamp, amount long").option("maxFilesPerTrigger", 1)
    marked = rows.json(str(home / "feed")).withWatermark("at", "10 seconds")
    writer = marked.writeStream.queryName("orders").option("checkpointLocation", str(home / f"checkpoint_{turn}"))
    warehouse = home / f"warehouse_{turn}"
    with api.listen(spark, warehouse=warehouse, topology="shop") if is_listened else nullcontext():
        query = writer.trigger(availableNow=True).format("delta").start(str(home / f"table_{turn}"))
        query.awaitTermination()
    lengths_ms = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress]
    assert median(lengths_ms) > 0
    return sum(lengths_ms[2:]) / len(lengths_ms[2:])
