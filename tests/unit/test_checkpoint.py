"""Reads batches from Spark's offset log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidemark.stream.journal.checkpoint import Plan, last_tick, read_plan

OFFSETS = '{"events":{"0":7,"1":3}}'
"""Offsets of one topic, after a line of ticks, by Spark."""


def plan(folder: Path, *lines: str) -> Path:
    (folder / "offsets").mkdir()
    (folder / "offsets" / "4").write_text("\n".join(lines))
    return folder


def test_a_plan_says_when_it_was_made(tmp_path: Path) -> None:
    told = '{"batchWatermarkMs":0,"batchTimestampMs":1399982400000,"conf":{"spark.sql.shuffle.partitions":"4"}}'
    checkpoint = plan(tmp_path, "v1", told, "4", OFFSETS)
    assert read_plan(checkpoint, 4) == Plan({"events": {0: 7, 1: 3}}, at_ms=1_399_982_400_000)


def test_a_plan_says_before_which_version_tables_are_read(tmp_path: Path) -> None:
    def table(name: str, version: int, *, first: bool = False) -> str:
        place = {"reservoirVersion": version, "index": -1, "isStartingVersion": first}
        return json.dumps({"sourceVersion": 1, "reservoirId": name, **place})

    lines = [table("a", 7), table("b", 3, first=True), OFFSETS, "-", table("a", 5), table("c", 0)]
    checkpoint = plan(tmp_path, "v1", '{"batchTimestampMs":1}', "4", *lines)
    assert read_plan(checkpoint, 4) == Plan({"events": {0: 7, 1: 3}}, at_ms=1, versions={"a": 5, "c": 0})


def test_the_last_tick_is_that_of_the_newest_plan(tmp_path: Path) -> None:
    assert last_tick(tmp_path) == -1
    checkpoint = plan(tmp_path, "v1", '{"batchTimestampMs":1}', "57", OFFSETS)
    (checkpoint / "offsets" / "10").write_text("\n".join(["v1", '{"batchTimestampMs":2}', "63", OFFSETS]))
    assert last_tick(checkpoint) == 63


def test_a_plan_without_its_time_is_an_error(tmp_path: Path) -> None:
    checkpoint = plan(tmp_path, "v1", '{"batchWatermarkMs":0}', "4", OFFSETS)
    with pytest.raises(ValueError, match="offsets/4: batchTimestampMs is missing"):
        read_plan(checkpoint, 4)


def test_a_torn_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="offsets/4: a plan must begin with v1"):
        read_plan(plan(tmp_path, "v1"), 4)
