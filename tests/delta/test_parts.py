"""A batch too large is run in parts, despite kills."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import BOOTED_MS, NOON, Play, Row, ms
from support.separate_executors import Apart
from support.topologies import aggregate, sink, source, table, topology_of
from tidemark.errors import Contradiction
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.model.topology import parse
from tidemark.stream.read.parts import SkippedRecord
from tidemark.stream.shards.shards import DriverIntake


def toml(most: int) -> str:
    return topology_of(
        {"level": "trace", "window": "10 s"},
        events=source(max_records=most),
        newest=table(columns=["v"]),
        counts=aggregate(key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)", "total": "sum(v)"}),
        kept=sink("events", table="kept"),
        out=sink("newest", topic="out"),
    )


BEFORE, LARGE, AFTER = range(3)


def records(play: Play) -> list[list[Row]]:
    """Three batches of two partitions: 2 records, 10, and 1."""

    def event(n: int, part: int) -> Row:
        return play.row("events", ms(3 * n), partition=part, key="k", id="ab"[n % 2], v=n)

    return [[event(n, n % 2) for n in numbers] for numbers in (range(2), range(2, 12), range(12, 13))]


def started(home: Path, most: int, shards: int = 1) -> Play:
    play = Play(toml(most), home, partitions=2)
    return play.in_shards(shards, Apart) if shards > 1 else play


def process(play: Play, batches: list[list[Row]], number: int) -> None:
    play.process(number, batches[number], at_ms=ms(60 * (number + 1)))


def limited(play: Play, most: int) -> None:
    """Limits the records per read of drivers that start from now."""
    play.topology = replace(parse(tomllib.loads(toml(most)), file="play.toml"), facts_every_ms=0)


def in_parts(home: Path, shards: int = 1) -> tuple[Play, list[str]]:
    """Runs the large batch in parts; returns the stream and steps.

    A part has 4 records at most, and nothing disturbs the driver.
    """
    play, steps = started(home, 4, shards), []
    batches = records(play)
    process(play, batches, BEFORE)
    play.start(reached=steps.append)
    process(play, batches, LARGE)
    large = steps.copy()
    process(play, batches, AFTER)
    return play, large


@pytest.fixture(scope="module")
def of_parts(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """The stream whose large batch ran in parts."""
    return in_parts(tmp_path_factory.mktemp("parts") / "play")[0]


def offsets(play: Play) -> dict[int, list[tuple[int, int]]]:
    """Returns partition and offset of the sink's records per batch."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in play.rows("kept"):
        found.setdefault(row["batch_id"], []).append((row["source_partition"], row["source_offset"]))
    return {number: sorted(rows) for number, rows in sorted(found.items())}


def test_each_part_is_a_batch_and_reads_its_share(of_parts: Play) -> None:
    play = of_parts
    assert offsets(play) == {
        0: [(0, 0), (1, 0)],
        1: [(0, 1), (1, 1)],
        2: [(0, 2), (0, 3), (1, 2), (1, 3)],
        3: [(0, 4), (0, 5), (1, 4), (1, 5)],
        4: [(0, 6)],
    }
    assert {row["decided_at"] for row in play.rows("batches") if row["batch_id"] in {1, 2, 3}} == {ms(120)}
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


def test_a_later_part_looks_when_the_one_before_has_ended(tmp_path: Path) -> None:
    play = started(tmp_path, 4)
    play.write_ms = 10
    batches = records(play)
    process(play, batches, BEFORE)
    process(play, batches, LARGE)
    _, first, second, third = sorted(play.rows("batches"), key=lambda row: row["batch_id"])
    assert first["looked_boot_ms"] == first["started_boot_ms"] == ms(120) - BOOTED_MS
    for before, part in ((first, second), (second, third)):
        assert part["looked_boot_ms"] == part["started_boot_ms"] > before["phases_boot_ms"]
        assert part["excluded_boot_ms"] == before["looked_boot_ms"]


def results(play: Play) -> dict[str, str | None]:
    return {f"{row['operator']} {row['key']}": row["value"] for row in play.rows("changes")}


def test_results_are_those_of_the_batch_as_it_was_planned(tmp_path: Path, of_parts: Play) -> None:
    whole = started(tmp_path, 100)
    batches = records(whole)
    for number in (BEFORE, LARGE, AFTER):
        process(whole, batches, number)
    assert results(of_parts) == results(whole)
    assert len(results(whole)) == 10  # two ids, each with four windows of ten seconds


@pytest.mark.parametrize(
    ("shards", "crashes"),
    [
        (2, slice(3, None, 14)),
        *(pytest.param(shards, slice(None), marks=pytest.mark.long) for shards in (1, 2)),
    ],
)
def test_a_crash_in_any_part_leaves_the_same_tables(tmp_path: Path, shards: int, crashes: slice) -> None:
    undisturbed, steps = in_parts(tmp_path / "whole", shards)
    assert steps.count("decided") == 3
    of_clocks = {"batches", "operator_windows"}
    expected = {name: rows for name, rows in undisturbed.tables().items() if name not in of_clocks}
    first, second, third = (n for n, step in enumerate(steps) if step == "decided")
    for place in [first, *range(second - 1, third + 1)][crashes]:
        play = started(tmp_path / str(place), 4, shards)
        batches = records(play)
        process(play, batches, BEFORE)
        play.start(reached=crash_at_number(place))
        with pytest.raises(Crash):
            process(play, batches, LARGE)
        play.start(epoch=2)
        process(play, batches, LARGE)
        process(play, batches, AFTER)
        found = {name: rows for name, rows in play.tables().items() if name not in of_clocks}
        assert found == expected, f"{place}: {steps[place]}"


def crash_at_number(wanted: int) -> Callable[[str], None]:
    seen = Counter[str]()

    def reached(_: str) -> None:
        if seen.total() == wanted:
            raise Crash
        seen["steps"] += 1

    return reached


def test_parts_are_smaller_from_a_start_with_a_lower_limit_on(tmp_path: Path) -> None:
    play = started(tmp_path, 100)
    batches = records(play)
    process(play, batches, BEFORE)
    limited(play, 4)
    play.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        process(play, batches, LARGE)
    limited(play, 2)
    play.start(epoch=2)
    process(play, batches, LARGE)
    process(play, batches, AFTER)
    assert offsets(play) == {
        0: [(0, 0), (1, 0)],
        1: [(0, 1), (1, 1)],  # the first of three
        2: [(0, 2), (1, 2)],  # eight records are left
        3: [(0, 3), (1, 3)],
        4: [(0, 4), (1, 4)],
        5: [(0, 5), (1, 5)],
        6: [(0, 6)],
    }


STEPS = ("decided", "committed kept", "committed dead_letters", "committed batches")


@pytest.mark.parametrize(
    ("shards", "steps"),
    [(1, STEPS[1::2]), *(pytest.param(*one, marks=pytest.mark.long) for one in ((1, STEPS[::2]), (2, STEPS)))],
)
def test_a_skipped_record_is_quarantined_once_despite_crashes(
    tmp_path: Path, shards: int, steps: tuple[str, ...]
) -> None:
    places = {"events": {(0, 3): SkippedRecord("kills_drivers")}}
    for step in steps:
        play = started(tmp_path / step, 100, shards)
        play.executors = play.executors and (lambda rows: DriverIntake(Apart(rows)))
        batches = records(play)
        process(play, batches, BEFORE)
        play.start(reached=crash_at(step))
        with pytest.raises(Crash):
            play.process(LARGE, batches[LARGE], at_ms=ms(120), passed_over=places)
        play.start(epoch=2)
        play.process(LARGE, batches[LARGE], at_ms=ms(120), passed_over=places)
        process(play, batches, AFTER)
        (bad,) = play.rows("quarantine")
        assert (bad["topic"], bad["partition"], bad["offset"], bad["reason"]) == ("events", 0, 3, "kills_drivers")
        assert offsets(play) == {
            0: [(0, 0), (1, 0)],
            1: [(0, 1), (0, 2), *((1, n) for n in range(1, 6))],
            2: [(0, 4), (0, 5)],
            3: [(0, 6)],
        }, step
        for row in play.rows("operator_batches"):
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


def test_a_checkpoint_older_than_a_batch_in_parts_is_refused(tmp_path: Path) -> None:
    play, _ = in_parts(tmp_path)
    play.start(epoch=2)
    with pytest.raises(Contradiction, match="continues with batch 1, but batch 2 is already decided"):
        play.process(LARGE, [], at_ms=NOON)
