"""Measures the price of each level with batches of 100,000 records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.emit_on_change import UPDATES, Feed, Ours
from bench.ratios import Figure, by_turns, ratios

from support.topologies import aggregate, map_of, operators, sink
from tidemark.spark_session import session

KEYS = 200_000
BATCHES = 4
MORE = operators(
    in_words=map_of("updates", select={"status": "status", "long": "length(note) > 50", "amount": "amount"}),
    per_status=aggregate("in_words", key=["status", "long"], aggregates={"n": "count(*)", "amount": "sum(amount)"}),
    board=sink("per_status", table="board"),
)


def figures(runs: int) -> Iterator[Figure]:
    """Throughput as a share of that without measuring."""
    spark = session("bench")
    with TemporaryDirectory() as folder:
        sides = {level: Ours(spark, Path(folder) / level, Feed(KEYS), level=level, more=MORE) for level in LIMITS}
        found = by_turns({level: lambda side=side: _records_a_second(side) for level, side in sides.items()}, runs + 1)
    found = {level: values[1:] for level, values in found.items()}  # the first turn warms up
    yield Figure("throughput, nothing measured", found["off"], unit="records/s")
    for level, limit in LIMITS.items():
        if limit:
            yield Figure(f"throughput at level {level} against nothing measured", ratios(found, level, "off"), limit)


LIMITS = {"off": None, "info": 0.95, "trace": 0.85}


def _records_a_second(side: Ours) -> float:
    return BATCHES * UPDATES / sum(side.batch() for _ in range(BATCHES))
