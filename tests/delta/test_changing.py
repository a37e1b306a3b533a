"""A topology file changes again and again, and its drivers are killed at any write: what goes on loses nothing.

Drivers are started as `run.py` does, and their batches are planned as Spark does. `support/changing.py` computes what
they must write.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.changing import Reading, Results
from support.crashes import Crash, Killed, Killer, crash_at
from support.play import NOON, Play
from support.separate_executors import Apart
from support.small_spark import Driver, Read, Record, Topics
from support.topologies import aggregate, current, map_of, repartition, sink, source, topology_of
from tidemark.cli.project.plan import changes_of_topology
from tidemark.cli.repair.begin import begin_plan
from tidemark.errors import InvalidArgument
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.stream.journal.entries import newest_entry
from tidemark.stream.startup.soundness import Unsound
from tidemark.stream.startup.source_list import Fate


# What the walk has found


class Small:
    """A topology of two sources of one partition, and its drivers."""

    def __init__(self, home: Path) -> None:
        self.home, self.topics, self.n, self.at_ms = home, Topics(1), 0, NOON
        self.topics.logs |= {"a": [[]], "b": [[]]}
        self.killer = Killer(home)

    def send(self, topic: str, *at_s: float) -> None:
        for second in at_s:
            self.topics.logs[topic][0].append(Record(self.n, "k", NOON + round(second * 1_000)))
            self.n += 1

    def play(self, toml: str) -> Play:
        return Play(toml, self.home)

    def run(self, toml: str, batches: int = 1, *, sub: str = "all", kill_at: str = "") -> Play:
        """Runs a driver for so many batches, the last of which ends at the step *kill_at*."""
        play = self.play(toml)
        driver = Driver(play, sub, self.topics, lambda: None)
        try:
            for _ in range(batches):
                self.at_ms += 1_000
                if kill_at:
                    play.start(sub, reached=crash_at(kill_at), epoch=driver.epoch)
                    with pytest.raises(Crash):
                        driver.batch(self.at_ms)
                else:
                    driver.batch(self.at_ms)
        finally:
            driver.end()
        return play


def small(a: str = "a", *, was: str | None = None, max_drift: str | None = None, **more: dict[str, Any]) -> str:
    """Returns a topology with the source *a* of the topic `a`, a table of its records, and *more* operators."""
    head = {} if max_drift is None else {"max_drift": max_drift}
    reading = source("id string, n bigint", topic="a", sub_topology="all", was=was)
    return topology_of(head, **{a: reading}, kept=sink(a, table="kept"), **more)


BESIDE = {"b": source("id string, n bigint", topic="b"), "united": {"kind": "union", "inputs": ["a", "b"]}}
"""A second source of the same stream."""


def test_records_that_wait_stay_when_an_operator_begins(tmp_path: Path) -> None:
    """Records that came later took the places of some. (Seed 1.)"""
    stream = Small(tmp_path)

    def waiting(aggregates: dict[str, str], max_drift: str | None = "1 s") -> str:
        counts = aggregate("a", key=["id"], aggregates=aggregates)
        return small(max_drift=max_drift, **BESIDE, copied=sink("united", table="copied"), counts=counts)

    for of_a, of_b in (([1], [1]), ([10, 20, 30, 40], [10]), ([], [11])):
        stream.send("a", *of_a)
        stream.send("b", *of_b)
        play = stream.run(waiting({"c": "count(*)"}))
    # b has come to 10 s, so the record of 20 s passes, before which a had come to 10 s; those of 30 and 40 s wait.
    assert [row["held_after"] for row in play.rows("operator_batches") if row["operator"] == "a"] == [0, 3, 2]
    begin_plan(stream.play(waiting({"c": "sum(n)"})).topology, tmp_path, "counts").apply()
    stream.send("a", 50)
    play = stream.run(waiting({"c": "sum(n)"}))
    assert [row["held_after"] for row in play.rows("operator_batches") if row["operator"] == "a"] == [0, 3, 2, 3]
    play = stream.run(waiting({"c": "sum(n)"}, max_drift=None))
    assert [(row["event_time"] - NOON) // 1_000 for row in play.rows("kept")] == [1, 10, 20, 30, 40, 50]


def test_an_operator_that_comes_back_does_not_have_what_it_had(tmp_path: Path) -> None:
    """Its counts would lack what came while the file was without it."""
    stream = Small(tmp_path)
    counts = {"counts": aggregate("a", key=["id"], aggregates={"c": "count(*)"})}
    for more, at_s in ((counts, 1), ({}, 2), (counts, 3), (counts, 4)):
        stream.send("a", at_s)
        play = stream.run(small(**more))
    values = [(row["batch_id"], row["value"]) for row in play.rows("changes")]
    assert values == [(0, '{"c":1}'), (2, '{"c":1}'), (3, '{"c":2}')]


def test_a_source_keeps_its_progress_if_was_goes_before_its_first_batch_under_the_new_name(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    stream.send("a", 1, 2)
    stream.run(small())
    stream.run(small("b", was="a"), batches=0)
    stream.run(small("c", was="b"), batches=0)
    stream.send("a", 0)
    play = stream.run(small("c"))
    assert [row["n"] for row in play.rows("kept")] == [0, 1, 2]
    (read,) = play.reads()[1]
    assert (read["source"], read["from_offset"], read["until_offset"]) == ("c", 2, 3)
    # Its newest record is still that of 2 s, and the bound is 1 s.
    assert read["watermark"] == NOON + 999


def test_a_batch_that_was_decided_counts_the_records_of_a_source_that_has_ended_since(tmp_path: Path) -> None:
    stream = Small(tmp_path)
    stream.send("b", 1, 2)
    stream.run(small(**BESIDE), kill_at="decided")
    play = stream.run(small())
    rows = play.rows("operator_batches")
    assert [(row["records_in"], row["passed"]) for row in rows if row["operator"] == "b"] == [(2, 2)]


def test_sums_begin_only_when_all_that_was_decided_before_them_is_read(tmp_path: Path) -> None:
    """A driver was killed when it had decided a batch, and had sent nothing of it to the sums."""
    stream = Small(tmp_path)

    def summing(function: str) -> str:
        return small(
            totals=aggregate("a", key=["id"], aggregates={"total": f"{function}(n)"}),
            dealt=repartition("totals", id=["id"], key=["id"], columns=["total"]),
            sums=aggregate("dealt", aggregates={"together": "sum(total)"}),
        )

    for at_s in (1, 2):
        stream.send("a", at_s, at_s)
        stream.run(summing("sum"), kill_at="decided" if at_s == 2 else "")
        stream.run(summing("sum"), sub="dealt")
    with pytest.raises(InvalidArgument, match=r"^play/dealt has read all up to batch 0, and there is batch 1: "):
        begin_plan(stream.play(summing("max")).topology, tmp_path, "totals")
    stream.run(summing("sum"))
    stream.run(summing("sum"), sub="dealt")
    begin_plan(stream.play(summing("max")).topology, tmp_path, "totals").apply()
    stream.send("a", 3)
    stream.run(summing("max"))
    play = stream.run(summing("max"), sub="dealt")
    # Sums of 0 and 1, of 2 and 3, and then the greatest of 4 alone.
    together = [json.loads(row["value"])["together"] for row in play.rows("changes", "dealt")]
    assert together == [0, 1, 3, 6, 4]
