"""Reads batches from Spark's offset log.

`offset_logs/VERSION` has files of real checkpoints, which `support/offset_log.py` wrote with that version of Spark: of
a rate source, of a topic with 3 records and 1 record, and of a Delta table with the versions 0 to 3.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tidemark.errors import UnreadableFile
from tidemark.model.project.files import CHECKOUT
from tidemark.stream.journal.checkpoint import (
    Plan,
    UnknownCheckpointFormat,
    last_tick,
    newest_commit,
    planned_files,
    plans,
    read_plan,
    version_read,
)

SAMPLES = Path(__file__).parent / "offset_logs"

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


def test_the_files_of_a_batch_are_those_noted_since_the_plan_before(tmp_path: Path) -> None:
    def offsets(batch_id: int, *lines: str) -> None:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(batch_id)).write_text("\n".join(["v1", '{"batchTimestampMs":1}', "4", *lines]))

    def notes(name: str, *numbers: int) -> None:
        entries = [{"path": f"file:///in/{n}", "timestamp": 70 + n, "batchId": n} for n in numbers]
        (tmp_path / "sources" / "2").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sources" / "2" / name).write_text("\n".join(["v1", *map(json.dumps, entries)]))

    def files(batch_id: int) -> list[tuple[str, int]]:
        return planned_files(tmp_path, batch_id, 2)

    offsets(0, OFFSETS, "-")
    offsets(1, OFFSETS, '{"logOffset":0}')
    offsets(2, OFFSETS, '{"logOffset":0}')
    offsets(3, OFFSETS, '{"logOffset":9}')
    offsets(4, OFFSETS, '{"logOffset":10}')
    notes("9.compact", *range(10))  # Spark has removed the notes before
    notes("10", 10)
    of = [(f"file:///in/{n}", 70 + n) for n in range(11)]
    assert [files(batch_id) for batch_id in range(5)] == [[], of[:1], [], of[1:10], of[10:]]
    (tmp_path / "sources" / "2" / "10").write_text('v1\n{"path":"fil')
    with pytest.raises(ValueError, match=r"sources/2/10: notes about files must begin with v1"):
        files(4)


def test_the_last_tick_is_that_of_the_newest_plan(tmp_path: Path) -> None:
    assert last_tick(tmp_path) == -1
    checkpoint = plan(tmp_path, "v1", '{"batchTimestampMs":1}', "57", OFFSETS)
    (checkpoint / "offsets" / "10").write_text("\n".join(["v1", '{"batchTimestampMs":2}', "63", OFFSETS]))
    assert last_tick(checkpoint) == 63


def test_a_plan_without_its_time_is_an_error(tmp_path: Path) -> None:
    checkpoint = plan(tmp_path, "v1", '{"batchWatermarkMs":0}', "4", OFFSETS)
    with pytest.raises(UnreadableFile, match="offsets/4: batchTimestampMs is missing"):
        read_plan(checkpoint, 4)


def test_a_torn_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="offsets/4: a plan must begin with v1"):
        read_plan(plan(tmp_path, "v1"), 4)


@pytest.mark.parametrize(
    ("spark", "at_ms", "table", "tick"),
    [
        ("4.1.3", 1_795_642_413_138, "49870080-67c7-4fca-b124-4270c09fa8e4", 7),
        ("4.1.4", 1_795_642_440_614, "417ebee3-71d3-4fa5-bd93-d1d1466599ba", 10),
    ],
)
def test_a_checkpoint_of_this_spark_is_read(spark: str, at_ms: int, table: str, tick: int) -> None:
    checkpoint, ends = SAMPLES / spark, {"orders": {0: 3, 1: 1}}
    assert read_plan(checkpoint, 1) == Plan(ends, at_ms=at_ms, versions={table: 4})
    assert plans(checkpoint) == {1: ends}
    assert newest_commit(checkpoint) == (1, False)
    assert (last_tick(checkpoint), version_read(checkpoint, table)) == (tick, 4)


def test_the_version_of_spark_has_a_sample() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    needed = map(Requirement, project["optional-dependencies"]["spark"])
    (version,) = {str(each.specifier) for each in needed if each.name in {"pyspark", "pyspark-client"}}
    assert version.removeprefix("==") in {folder.name for folder in SAMPLES.iterdir()}


def test_a_plan_of_another_format_is_refused(tmp_path: Path) -> None:
    checkpoint = plan(tmp_path, "v2", '{"batchTimestampMs":1}', "4", OFFSETS)
    said = r"offsets/4: the format of this file must be v1, got v2, of another version of Spark"
    for read in (lambda: read_plan(checkpoint, 4), lambda: plans(checkpoint), lambda: last_tick(checkpoint)):
        with pytest.raises(UnknownCheckpointFormat, match=said):
            read()
    with pytest.raises(UnknownCheckpointFormat, match=said):
        version_read(checkpoint, "a")


def test_a_commit_of_another_format_is_not_torn(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").write_text('v2\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(UnknownCheckpointFormat, match="commits/3: the format of this file must be v1, got v2"):
        newest_commit(tmp_path)
    (tmp_path / "commits" / "4").write_text("v")
    assert newest_commit(tmp_path) == (4, True)
