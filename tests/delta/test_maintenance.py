"""A warehouse that is kept small: nothing that counts goes, whoever writes or stands still meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playing import NEWEST, Crash, Play, crash_at

from tidemark.clock import wall_clock_ms
from tidemark.delta import Reference
from tidemark.kernels.steps import pruned
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.semantics.progress import StreamProgress
from tidemark.spec.layout import Layout
from tidemark.stream.journal import Journal
from tidemark.stream.load import load_memory
from tidemark.stream.steps import Steps
from tidemark.stream.wiring import Stream

T = 1_400_000_000_000
SUB = "0"
SOON = """
[retention]
changes = "1 ms"
state = "1 ms"
hops = "1 ms"
unused = "1 ms"
"""
"""All that need not be kept goes at once."""
EVERYTHING = f"""
name = "play"
{SOON}
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v int, event_time bigint"
timestamp = "event_time"
key = "id"
bound = "1 s"
allowed_lateness = "4 s"
[operators.rates]
kind = "source"
topic = "rates"
fields = "id string, rate int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.rate]
kind = "table"
input = "rates"
key = ["id"]
columns = ["rate"]
[operators.priced]
kind = "join"
input = "events"
table = "rate"
on = {{ id = "id" }}
[operators.prices]
kind = "sink"
input = "priced"
table = "prices"
[operators.newest]
kind = "table"
input = "events"
key = ["id"]
columns = ["v"]
[operators.board]
kind = "sink"
input = "newest"
table = "board"
mode = "current"
key = ["id"]
[operators.slow]
kind = "table"
input = "events"
key = ["id"]
strategy = "periodic"
interval = "4 s"
[operators.sums]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "4 s" }}
aggregates = {{ total = "sum(v)" }}
[operators.visits]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ session = "3 s" }}
aggregates = {{ most = "max(v)" }}
[operators.finals]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "4 s" }}
strategy = "on_window_close"
aggregates = {{ n = "count(*)" }}
[operators.by_v]
kind = "repartition"
input = "newest"
id = ["id"]
key = ["v"]
columns = ["v"]
[operators.per_v]
kind = "aggregate"
input = "by_v"
aggregates = {{ n = "count(*)" }}
[operators.sent]
kind = "repartition"
input = "events"
key = ["v"]
columns = ["id"]
[operators.running]
kind = "aggregate"
input = "sent"
aggregates = {{ n = "count(id)" }}
"""


def streams(play: Play) -> list[Stream]:
    return [Stream(play.topology, sub, Layout(play.home)) for sub in play.topology.sub_topologies]


def maintained(play: Play, *, in_ms: int = 10_000) -> None:
    """As the job does when all files are closed, so long from now; a play has no checkpoint, which is nobody's loss."""
    for stream in streams(play):
        maintain_stream(stream, now_ms=wall_clock_ms() + in_ms, closed_after_ms=0)


def memory_of(stream: Stream) -> dict[str, Any]:
    """What a driver that starts now finds in the tables of *stream*."""
    newest = Journal(stream.control / "journal", "data").newest()
    progress = StreamProgress.from_json(newest.notes["progress"]) if newest else StreamProgress()
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    load_memory(steps, stream.sub, stream.home, progress)
    memory = steps.memory
    rows: dict[str, pl.DataFrame] = {f"stored {name}": kept.all() for name, kept in memory.stored.items()}
    rows |= {f"state {name}": kept.all() for name, kept in memory.states.items()}
    rows |= {f"waiting {name}": kept for name, kept in memory.waiting.items()}
    asked_from_ms = (progress.watermark_ms or 0) - 4_000  # events may be as late
    rows |= {f"versions {n}": pruned(kept, ["id"], before_ms=asked_from_ms) for n, kept in memory.versions.items()}
    return {name: sorted(map(str, frame.rows())) for name, frame in rows.items()} | {"held": memory.held}


def random_batch(play: Play, chance: random.Random, number: int) -> None:
    """A batch of each sub-topology, some seconds after the one before; the same for the same chance."""
    at_ms = T + 1_500 * number
    rows = []
    for _ in range(chance.randrange(6)):
        late_ms = chance.choice([0, 500, 3_000, 6_000])
        row = play.row("events", at_ms - late_ms, id=chance.choice("abcde"), v=chance.randrange(3))
        rows.append(row | {"deleted": chance.random() < 0.1})
    for _ in range(chance.randrange(2)):
        rows.append(play.row("rates", at_ms - chance.choice([0, 2_000]), id=chance.choice("abc"), rate=number))
    play.batch(rows, at_ms=at_ms)
    for sub in play.topology.sub_topologies[1:]:
        play.hop(sub.name, at_ms=at_ms)


@pytest.mark.parametrize("seed", [0])
def test_a_driver_started_after_maintenance_has_the_memory_of_one_without_and_does_the_same(
    tmp_path: Path, seed: int
) -> None:
    plain, kept = (Play(EVERYTHING, tmp_path / name) for name in ("plain", "kept"))
    chances = [random.Random(seed), random.Random(seed)]
    for number in range(8):
        for play, chance in zip((plain, kept), chances, strict=True):
            random_batch(play, chance, number)
        if number in (3, 6):
            maintained(kept)
            for one, other in zip(streams(plain), streams(kept), strict=True):
                assert memory_of(one) == memory_of(other)
            for sub in kept.topology.sub_topologies:
                kept.start(sub.name)
    went = {"changes", "operator_state", "hop_by_v", "hop_sent"}
    one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} <= went
    for name in went:
        assert set(other[name]) < set(one[name])


def a_batch(play: Play, number: int) -> None:
    """A new value of `a`, and one of each other id now and then."""
    at_ms = T + 1_000 * number
    rows = [play.row("events", at_ms, id=name, v=number) for name in ("a", "bcde"[number % 4])]
    play.batch(rows, at_ms=at_ms)


STEPS = ("decided", "committed changes", "committed board", "measured", "committed outcomes", "committed batches")


def test_maintenance_between_any_two_commits_of_a_driver_changes_nothing_of_what_it_does(tmp_path: Path) -> None:
    plain, kept = Play(NEWEST, tmp_path / "plain"), Play(NEWEST + SOON, tmp_path / "kept")
    kept.start(SUB, lambda step: maintained(kept))
    for number in range(2):
        a_batch(plain, number)
        a_batch(kept, number)
    one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} == {"changes"}
    assert kept.rows("board") == plain.rows("board")
    assert memory_of(streams(kept)[0]) == memory_of(streams(plain)[0])


def test_a_driver_that_ends_at_any_step_and_a_maintenance_before_the_next_one_lose_nothing(tmp_path: Path) -> None:
    plain, kept = Play(NEWEST, tmp_path / "plain"), Play(NEWEST + SOON, tmp_path / "kept")
    for number, step in enumerate(STEPS):
        a_batch(plain, number)
        kept.start(SUB, crash_at(step))
        rows = [kept.row("events", T + 1_000 * number, id=name, v=number) for name in ("a", "bcde"[number % 4])]
        with pytest.raises(Crash):
            kept.process(number, rows, at_ms=T + 1_000 * number, sub=SUB)
        maintained(kept)
        kept.start(SUB)
        kept.process(number, rows, at_ms=T + 1_000 * number, sub=SUB)
    one, other = plain.tables(), kept.tables()
    assert {name for name in one if one[name] != other[name]} == {"changes"}
    assert sorted(str(row["key"]) for row in kept.rows("changes")) == list("abcde")
