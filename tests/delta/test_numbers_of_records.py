"""Which shares of records did not come through: plays beside those of the table of planted faults.

Each topic gets three records a partition every ten seconds, and a promise is judged over a minute: 18 records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable, write_deltalake

from support.fault_table import SHELVES, SHOP, THREE, Owned, Stage, enough, fresh, share
from support.healthy import Healthy
from support.planted import Fields, Killed, More, Repeated, Silent, Slow, Unusable, WrongClock
from support.play import Play, ms
from support.topologies import aggregate, source, topology_of
from support.world import Fault, Traffic
from tidemark.account.cause import cause_of
from tidemark.account.explanation import Answer, Became
from tidemark.account.numbers import shares_of_records
from tidemark.account.warehouse import AccountTables
from tidemark.facts.fact_tables import Stored
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.stream.startup.source_list import follow

ALWAYS = replace(SHOP, since_s=0)
"""What is planted was there from the beginning."""
MANY = replace(SHOP, traffic=[Traffic(partitions=12, each=1)])


@dataclass(frozen=True)
class Case:
    """A play, a promise, and the owners with what became of their records."""

    name: str
    stage: Stage
    promise: Mapping[str, Any]
    at_s: float
    faults: Sequence[Fault]
    owners: Sequence[tuple[Owned, Became]]
    answer: Answer = Answer.EXPLAINED
    usual_records: int = 0


def producer(partition: int, records: int) -> Owned:
    return Owned("producer", f"events/{partition}", records=records)


def same(partition: int, since_s: float) -> Fields:
    return Fields(partition, since_s, owner="operator", detail="newest", values=(("amount", 7.0),))


LOST = Became.NOT_PRODUCED
CASES = [
    Case(
        "one of three partitions is silent, another one sends what cannot be used",
        THREE,
        enough("newest", 45),
        309,
        [Silent(1, 245), Unusable(0, 245)],
        [(producer(0, 18), Became.QUARANTINED), (producer(1, 18), LOST)],
    ),
    # Until 275.1 s the driver has read three rounds, and 18 records are counted of two: the third has no facts yet.
    Case(
        "a killed driver looks no more",
        SHOP,
        enough("newest", 30),
        309,
        [Killed("reads", 275.1)],
        [(Owned("absence", "play/reads", records=24), Became.UNREAD)],
    ),
    # A repartition sends each of 36 updates on twice.
    Case(
        "a hop whose reader is killed",
        SHOP,
        enough("sums", 60),
        309,
        [Killed("sums", 245.5)],
        [(Owned("absence", "play/sums", records=72), Became.UNREAD)],
    ),
]
LONG_CASES = [
    # The batch has the records of 250 s; of those of 260 to 310 s nobody knows.
    Case(
        "a driver that hangs in an operator looks no more", SHOP, enough("newest", 30), 320,
        [Slow("operator", "newest", 10**6, 250, times=1)],
        [(Owned("operator", "newest", records=42), Became.UNREAD)],
    ),
    Case("a partition is silent for a while", SHOP, enough("newest", 30), 310, [Silent(0, 245, until_s=275)],
         [(producer(0, 9), LOST)]),
    Case("all partitions are silent, three drivers later", SHOP, fresh("totals", "30 s"), 309, [Silent(None, 245)],
         [(Owned("topic", "events", records=36), LOST)]),
    Case("late records are missing behind their source", SHOP, enough("newest", 34), 310,
         [WrongClock(1, 245, until_s=255, ahead_ms=-58_000)], [(producer(1, 3), Became.LATE)]),
    # Of 150 records until 250 s, 24 rounds of one partition changed nothing: 48 % of the 42 since then are as usual.
    Case("half of the updates never change anything, and then all", ALWAYS, fresh("board", "30 s"), 329,
         [same(0, 0), same(1, 245)], [(Owned("operator", "newest", records=42), Became.SUPPRESSED)], usual_records=20),
    # The first round has ids that are new, and five follow.
    Case("one of two partitions repeats its records", SHELVES, enough("newest", 30), 309, [Repeated(0, 245)],
         [(producer(0, 15), Became.DUPLICATE)]),
    # Each partition has a twelfth of them, which is less than a tenth.
    Case("no partition of many stands out", MANY, share("events", "quarantined_share", 0.02), 310,
         [Unusable(None, 245)], [(Owned("topic", "events", records=72), Became.QUARANTINED)]),
    Case("half of the records could never be used", ALWAYS, share("events", "quarantined_share", 0.02), 310,
         [Unusable(1, 0)], [], Answer.AS_USUAL),
    Case("so few records always come", SHOP, enough("newest", 50), 310, [], [], Answer.AS_USUAL),
    Case("enough records come", SHOP, enough("newest", 30), 310, [More(0, 245, times=2)], [], Answer.KEPT),
]  # fmt: skip


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    return Healthy(tmp_path_factory.mktemp("healthy"))


def each_case() -> Sequence[ParameterSet]:
    return [
        *(pytest.param(case, id=case.name) for case in CASES),
        *(pytest.param(case, id=case.name, marks=pytest.mark.long) for case in LONG_CASES),
    ]


@pytest.mark.parametrize("case", each_case())
def test_records_that_do_not_come_through_have_an_owner(case: Case, healthy: Healthy, tmp_path: Path) -> None:
    world = healthy.copy(case.stage, tmp_path / "warehouse").plant(*case.faults)
    world.run(case.at_s)
    (spec,) = parse(
        {world.topology.name: {"promise": {**case.promise, "owner": "o"}}}, world.topology, file="slas.toml"
    )
    found = shares_of_records(AccountTables(world.layout, world.topology, Stored()), spec, at_ms=ms(case.at_s))
    assert found.answer is case.answer
    named = [(Owned(leaf.owner, leaf.detail, records=leaf.records), leaf.became) for leaf in found.leaves]
    assert named == [*case.owners]
    assert sum(leaf.usual_records or 0 for leaf in found.leaves) == case.usual_records


def test_late_records_that_were_there_before_their_source_began_are_late_because_of_the_file(tmp_path: Path) -> None:
    """Windows of 5 s until 15 s are closed when `more` begins with records of 3, 4 and 18 s; one of 2 s comes later."""

    def file(*names: str) -> str:
        sources = {name: source(topic=name, sub_topology="all") for name in names}
        sums = aggregate("both", key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"})
        return topology_of(**sources, both={"kind": "union", "inputs": [*names]}, sums=sums)

    play = Play(file("events"), tmp_path)
    play.start()
    follow(play.control, play.topology.sub_topologies[0], -1)
    for n in range(4):
        play.batch([play.row("events", ms(5 * n), id="a", v=n)], at_ms=ms(5 * n))

    later = Play(file("events", "more"), tmp_path)
    follow(later.control, later.topology.sub_topologies[0], 3)
    later.resume({"all": 4}, {("events", 0): 4})
    later.start(epoch=2)
    later.batch([later.row("more", ms(at), id="b", v=at) for at in (3, 4, 18)], at_ms=ms(30))
    later.batch([later.row("more", ms(2), id="b", v=2), later.row("events", ms(31), id="a", v=9)], at_ms=ms(31))
    promise = share("sums", "late_share", 0.02)
    (spec,) = parse({"play": {"promise": {**promise, "owner": "o"}}}, later.topology, file="slas.toml")
    found = shares_of_records(AccountTables(Layout(tmp_path), later.topology, Stored()), spec, at_ms=ms(32))
    assert [(leaf.owner, leaf.detail, leaf.partition, leaf.records, leaf.became) for leaf in found.leaves] == [
        ("topology_change", "more", "more/0", 2, Became.LATE), ("key", "k", "more/0", 1, Became.LATE),
    ]  # fmt: skip


def test_numbers_are_those_of_the_tables_as_others_have_read_them(healthy: Healthy, tmp_path: Path) -> None:
    """Three records of each of six rounds are refused, and then somebody writes all outcomes a second time."""
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(Unusable(1, 245))
    world.run(310)
    promise = {**share("events", "quarantined_share", 0.02), "owner": "o"}
    (spec,) = parse({world.topology.name: {"promise": promise}}, world.topology, file="slas.toml")

    def broken(stored: Stored) -> int:
        return cause_of(world.topology, world.layout, spec, at_ms=ms(310), stored=stored).broken

    stored = Stored()
    once = broken(stored)
    world.drivers["reads"].flush()
    path = world.layout.stream_table("play", "reads", "operator_batches")
    write_deltalake(path, DeltaTable(path).to_pyarrow_table(), mode="append")
    assert (once, broken(stored), broken(Stored())) == (18, 18, 36)
