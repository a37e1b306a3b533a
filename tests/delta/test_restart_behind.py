"""A restart far behind is named `catching_up`, with its end.

Its clock is that of the play, which no other work slows down. The engine, its journal, heartbeats and `why` are the
real ones. Records, the speed of reading, and what comes meanwhile follow from a seed.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest

from support.play import NOON, Play, ms, tell
from support.quiet_broker import Ends
from support.topologies import sink, source, topology_of
from tidemark.model.project.layout import Layout
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.why.walk import why

PASSING = topology_of(
    {"trigger": "3 s"},
    events=source("id string, amount double", sub_topology="reads", bound="1 min", max_ahead=None),
    board=sink("events", table="board"),
)
TRIGGER_S, CHECK_EVERY_S = 3.0, 60.0
DOWN_S = 3_600.0
"""From the driver's death to the start of the next one."""


class Restart:
    """A new driver, an hour after the one before was killed.

    Two partitions have *behind* records then, and *arrival* more come each second. Seconds count from the kill.
    """

    def __init__(self, home: Path, *, behind: int, arrival: float) -> None:
        self.play = Play(PASSING, home, partitions=2, facts_every_ms=60_000)
        self.play.broker = self.broker = Ends(2)
        self.history = Heartbeats(Layout(home).stream("play", "reads"), topology="play", sub_topology="reads")
        self.behind, self.arrival = behind, arrival
        self.until, self.batch_id = 0, 0
        self.play.batch(at_ms=ms(0))
        self.ended_ms = 0
        self.play.start(epoch=2, reached=lambda step: self._writes())

    def _writes(self) -> None:
        self.play.now_ms = max(self.play.now_ms, self.ended_ms)

    def latest(self, at_s: float) -> int:
        """The number of records that had come at *at_s*."""
        return self.behind + int(self.arrival * max(0.0, at_s - DOWN_S))

    def reads(self, n: int, *, planned_s: float, begins_s: float, takes_s: float) -> float:
        """Runs a batch of *n* records; returns when it ended.

        Reading them takes half of the time, and writing the other.
        """
        self.batch_id += 1
        first, self.until = self.until, self.until + n
        ended_s = begins_s + takes_s
        self.play.now_ms = ms(begins_s)

        def collect() -> pl.DataFrame:
            self.play.now_ms = ms(begins_s + takes_s / 2)
            self.ended_ms = ms(ended_s)
            come = self.latest((self.play.now_ms - NOON) / 1_000)
            self.broker.ends.update({part: (come + part) // 2 for part in (0, 1)})
            return records(self.play, first, self.until)

        ends = {"events": {part: (self.until + part) // 2 for part in (0, 1)}}
        self.play.engine("reads").process(self.batch_id, collect, ends, planned_at_ms=ms(planned_s))
        load = {key: value for key, value in self.load.items() if key in LOAD}
        tell(self.history, ended_s, epoch=2, **load)
        return ended_s

    @property
    def load(self) -> dict[str, int | float | None]:
        """The driver's rates and estimate after its last batch."""
        return dict(self.play.engine("reads").load)


def caught_up(home: Path, seed: int) -> tuple[bool, float]:
    """Plays a restart until nothing waits that waited before.

    Returns:
        Whether one of the first two checks named it, and the error of the estimate at half time, as a share of the time
        that was left then.
    """
    random = Random(seed)
    behind = random.randint(10_000, 500_000)
    # A batch takes from a third of the trigger to three of them, and the first one longer.
    limit, takes_s, cold_s = behind // random.randint(20, 40), random.uniform(1, 9), random.uniform(5, 20)
    arrival = random.uniform(0.1, 0.5) * limit / max(TRIGGER_S, takes_s)
    restart = Restart(home, behind=behind, arrival=arrival)
    begins_s, asked = DOWN_S + random.uniform(5, 15), behind
    # The killed driver may have planned the first batch.
    planned_s = random.choice([0.0, begins_s])
    estimates: list[tuple[float, float | None]] = []
    while True:
        n = min(limit, restart.latest(begins_s) - restart.until)
        length_s = cold_s + n / limit * takes_s * random.uniform(0.8, 1.2)
        ended_s = restart.reads(n, planned_s=planned_s, begins_s=begins_s, takes_s=length_s)
        eta_ms = restart.load["eta_at"]
        estimates.append((ended_s, None if eta_ms is None else (eta_ms - NOON) / 1_000))
        if restart.until >= asked:
            break
        asked, cold_s = sum(restart.broker.ends.values()), 0.0
        planned_s = begins_s = max(ended_s, (begins_s // TRIGGER_S + 1) * TRIGGER_S)
    checks_s = (DOWN_S + CHECK_EVERY_S, DOWN_S + 2 * CHECK_EVERY_S)
    found = [why(restart.play.topology, Layout(home), at_ms=ms(at_s)) for at_s in checks_s]
    is_named = any(finding.cause == "catching_up" for findings in found for finding in findings)
    at_s, eta_s = [each for each in estimates if each[0] <= (DOWN_S + ended_s) / 2][-1]
    return is_named, 1.0 if eta_s is None else abs(eta_s - ended_s) / (ended_s - at_s)


@pytest.mark.long  # some seventy batches of the engine for each of twenty seeds
def test_restarts_behind_are_named_and_their_end_estimated(tmp_path: Path) -> None:
    found = [caught_up(tmp_path / str(seed), seed) for seed in range(20)]
    assert [is_named for is_named, _ in found] == [True] * 20
    errors = [round(error, 2) for _, error in found]
    assert sum(error <= 0.2 for error in errors) >= 18, errors


LOAD = ("records_behind", "arrival_per_s", "working_per_s", "eta_at")


def records(play: Play, first: int, until: int) -> pl.DataFrame:
    """Returns the records *first* to before *until*, by turns of both partitions."""
    number = pl.int_range(first, until, eager=True)
    rows = pl.DataFrame(
        {
            "source": ["events"] * (until - first),
            "partition": ((number + 1) % 2).cast(pl.Int32),
            "offset": number // 2,
            "key": [b"k"] * (until - first),
            "deleted": [False] * (until - first),
            "timestamp_ms": NOON + number,
        }
    )
    schema = play._schema("reads")
    value = pl.struct(pl.lit("a").alias("id"), pl.lit(1.0).alias("amount"), pl.col("timestamp_ms").alias("event_time"))
    return pl.concat(
        [pl.DataFrame(schema=schema), rows.with_columns(value.cast(schema["events"]).alias("events"))],
        how="diagonal_relaxed",
    )


def test_the_arrival_rate_counts_since_the_broker_was_asked(tmp_path: Path) -> None:
    restart = Restart(tmp_path, behind=36_000, arrival=10)
    # The killed driver had planned the first batch; the new one reads it for 20 s: the broker is asked at 3,610 s.
    restart.reads(2_000, planned_s=0, begins_s=DOWN_S, takes_s=20)
    restart.reads(1_000, planned_s=3_620, begins_s=3_620, takes_s=10)
    # 150 records came from 3,610 s until 3,625 s, and 1,000 were read from 3,620 s until 3,630 s.
    assert (restart.load["arrival_per_s"], restart.load["working_per_s"]) == (10, 100)
