"""What the engine records of random lives gives the accounts that those lives had.

The engine, its journal and its tables are real; clocks, brokers and Spark are played (`support.world`). The world knows
who spent each ms, and `support.played_facts` tells it in the facts of the account, without the warehouse.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from support.planted import Killed, Slow, Stopped
from support.played_facts import played_facts
from support.recorded_facts import recorded_facts
from support.topologies import aggregate, current, operators, repartition, sink, source, table, topology_of
from support.world import Costs, Fault, Traffic, World
from support.world_drivers import BEAT_MS
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.records import numbered, record_parts
from tidemark.account.timeline import FIRST_MS, timeline_of
from tidemark.account.windows import window_parts

EXAMPLES = 6 if settings().max_examples < 100 else 100
UNTIL_S = 40
READ = topology_of(events=source("id string, amount double", bound="1 s"))
TOML = (
    READ
    + operators(newest=table(columns=["amount"]), board=current("newest", "board"))
    + operators(by_id=repartition("events", key=["id"], columns=["amount"]))
    + operators(far=sink("by_id", table="far", sub_topology="behind"))
    + operators(sums=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}))
    + operators(sums_out=sink("sums", table="sums"))
)
PLACES = {"board": "changes_of_board", "sums_out": "sums", "far": "far"}
"""Operators whose results the world knows by the name of their table."""


def lived(seed: int, home: Path) -> World:
    """Returns a world with random costs, in which up to two things go wrong."""
    draw = Random(seed)
    costs = Costs(
        look=draw.randint(5, 60), plan=draw.randint(5, 80), read=draw.randint(5, 90), work=draw.randint(1, 40),
        journal=draw.randint(1, 30), write=draw.randint(5, 60), spark=draw.randint(5, 60),
    )  # fmt: skip
    traffic = Traffic(every_s=draw.choice([1, 2, 5]), each=draw.randint(1, 4), usual_ms=draw.randint(0, 900))
    slow = draw.choice(
        [("operator", "newest"), ("target", "sums"), ("broker", ""), ("spark", ""), ("target", "journal")]
    )
    faults: list[Fault] = [
        Slow(*slow, draw.randint(100, 4_000), since_s=draw.uniform(5, 25), until_s=draw.uniform(25, 35)),
        Killed("events", draw.uniform(8, 30), draw.randint(500, 6_000)),
        Stopped("events", draw.uniform(8, 30), draw.randint(1_500, 6_000)),
    ]
    world = World(TOML, home, traffic=(traffic,), costs=costs)
    world.plant(*draw.sample(faults, draw.randint(0, 2)))
    world.run(UNTIL_S)
    return world


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**40))
def test_a_recorded_life_is_what_happened(seed: int) -> None:
    home = Path(mkdtemp())
    try:
        world = lived(seed, home / "warehouse")
        ledger = Ledger.of(recorded_facts(world.play.home, world.topology))
        check_lives(world, ledger)
        check_parts(world, ledger)
    finally:
        shutil.rmtree(home)


def check_lives(world: World, ledger: Ledger) -> None:
    """Each owner has the time in the stream's life that it spent."""
    for name, driver in world.drivers.items():
        told = Counter[str]()
        of_stream = timeline_of(ledger.facts).filter(pl.col("stream") == f"{world.topology.name}/{name}")
        for piece in of_stream.iter_rows(named=True):
            # Before the first look nobody ran, and after the last sign nobody knows.
            if piece["owner"] != "unknown" and piece["began_ms"] > FIRST_MS:
                told[piece["owner"]] += piece["ended_ms"] - piece["began_ms"]
        happened = Counter[str]()
        for stretch in driver.life:
            happened[stretch.owner] += stretch.ended_ms - stretch.began_ms
        # The pulse knows where a pause began to a beat, and the work that a killed driver had not decided is lost.
        pauses = sum(stretch.owner == "pause" for stretch in driver.life)
        killed = any(stretch.owner == "absence" for stretch in driver.life)
        lost_ms = max((ended - began for _, began, ended in driver.batches), default=0) + 5_000 if killed else 0
        for owner in {*told, *happened}:
            assert abs(told[owner] - happened[owner]) <= pauses * BEAT_MS + lost_ms, (owner, told, happened)
        assert sum(told.values()) == sum(happened.values())


def check_parts(world: World, ledger: Ledger) -> None:
    """Parts add up to ages, nothing is unknown, and each owner has as much time as in the world's own facts."""
    results, windows = numbered(ledger.facts.results), numbered(ledger.facts.windows)
    for parts, rows, since in (
        (record_parts(ledger), results, pl.col("event_ms")), (window_parts(ledger), windows, pl.col("end_ms")),
    ):  # fmt: skip
        ages = rows.select("result", age_ms=pl.col("visible_ms") - since)
        booked = parts.group_by("result").agg(pl.sum("ms"))
        assert booked.join(ages, on="result").filter(pl.col("ms") != pl.col("age_ms")).is_empty()
        assert parts.filter(pl.col("owner") == "unknown").is_empty(), parts.filter(pl.col("owner") == "unknown")
    played = Ledger.of(played_facts(world))
    # The world does not tell what is usual, and without it no extra work belongs to what made records wait.
    without_usual = {name: AccountFacts().__dict__[name] for name in ("usual_lengths", "usual_arrivals")}
    told = of_place(record_parts(Ledger.of(replace(ledger.facts, **without_usual))), results)
    happened = of_place(record_parts(played), numbered(played.facts.results))
    for place in ("board", "sums_out"):
        n = results.filter(pl.col("place") == place)["n"].sum()
        whole_ms = sum(happened[PLACES[place]].values())
        for owner in {*told[place], *happened[PLACES[place]]}:
            differs_ms = abs(told[place][owner] - happened[PLACES[place]][owner])
            assert differs_ms <= whole_ms / 50 + n * BEAT_MS, (place, owner, told[place], happened[PLACES[place]])


def of_place(parts: pl.DataFrame, results: pl.DataFrame) -> dict[str, Counter[str]]:
    """Returns how much time each owner has of all results at each place."""
    rows = parts.join(results.select("result", "place", "n"), on="result")
    sums = rows.group_by("place", "owner").agg(ms=(pl.col("ms") * pl.col("n")).sum())
    found: dict[str, Counter[str]] = {}
    for place, owner, length_ms in sums.rows():
        found.setdefault(place, Counter())[owner] = length_ms
    return found
