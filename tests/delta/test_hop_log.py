"""A hop's log is short, but complete for readers that paused days."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from support.play import Play, ms
from support.topologies import EVENTS, aggregate, operators, repartition, sink
from tidemark.cli.repair.accept_loss import loss_plan
from tidemark.control.folder import Heartbeat, StreamState
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.tables.catalog import HOP
from tidemark.storage.delta.log import HOP_LOG
from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.fence import Fence
from tidemark.stream.read import hop_log
from tidemark.stream.read.data_loss import DataLost
from tidemark.stream.read.hop_log import KEPT, begins_at, is_cut, put_back, trim

BY_V = EVENTS + operators(
    by_v=repartition(key=["v"], columns=["id"]),
    per_v=aggregate("by_v", aggregates={"n": "count(id)"}),
    counts=sink("per_v", table="counts"),
)
READER = "by_v"
NOW = 10 * DAY_MS


class Hop:
    """A hop of `play` and its reader's control folder.

    The commit of batch n is version n + 1.
    """

    def __init__(self, home: Path) -> None:
        self.path = Layout(home).hop("play", "events", "by_v")
        self.reader = Layout(home).control("play", READER)

    @classmethod
    def of(cls, home: Path, batches: int) -> Hop:
        """Returns a hop with commits of so many batches of one row."""
        hop = cls(home)
        hop.path.parent.mkdir(parents=True)
        create(hop.path, arrow_schema(HOP), log=HOP_LOG)
        committer = Committer("play/events", Fence(clock=lambda: 0))
        for batch_id in range(batches):
            committer.commit(hop.path, rows_of(HOP, [{"seq": 0}], batch_id=batch_id), batch_id)
        return hop

    def versions(self, folder: str) -> list[int]:
        return sorted(int(file.stem) for file in (self.path / folder).glob("*.json") if file.stem.isdecimal())

    def checkpoint(self, version: int) -> None:
        DeltaTable(str(self.path), version=version).create_checkpoint()

    def aged(self, ages_ms: Mapping[int, int]) -> None:
        """Ages commits and checkpoints by version, according to *ages_ms*.

        Each gets the age of the newest version of *ages_ms* that is not newer.
        """
        for file in (self.path / "_delta_log").glob("0*"):
            version = int(file.name[:20])
            age_ms = ages_ms[max(number for number in ages_ms if number <= version)]
            os.utime(file, ((NOW - age_ms) / 1_000,) * 2)

    def read(self, version: int) -> None:
        """Have the reader's Spark be about to read *version*."""
        for name in ("offsets", "commits"):
            (self.reader / "checkpoint" / name).mkdir(parents=True, exist_ok=True)
        table = str(DeltaTable(str(self.path)).metadata().id)
        offset = {"reservoirId": table, "reservoirVersion": version, "index": -100, "isStartingVersion": False}
        told = f'v1\n{{"batchTimestampMs": 1}}\n-\n{json.dumps(offset)}\n'
        (self.reader / "checkpoint" / "offsets" / "7").write_text(told)
        (self.reader / "checkpoint" / "commits" / "7").write_text("v1\n{}\n")

    def beats(self, at_ms: int) -> None:
        beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=at_ms, pid=1)
        (self.reader / "heartbeat.json").write_text(json.dumps(vars(beat)))

    def trim(self) -> None:
        trim(self.path, DeltaTable(str(self.path)), [self.reader], now_ms=NOW)

    def rows(self) -> int:
        return scan(self.path).collect().height


@pytest.fixture
def hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hop:
    """Returns a hop of 12 versions with checkpoints of 3, 6, 9.

    Version 0 is its creation; all are an hour old.
    """
    monkeypatch.setattr(DeltaTable, "cleanup_metadata", lambda table: None)  # goes by this machine's clock
    made = Hop.of(tmp_path, 11)
    for version in (3, 6, 9):
        made.checkpoint(version)
    made.aged({0: 3_600_000})
    return made


def test_commits_that_all_readers_have_read_leave_the_log(hop: Hop) -> None:
    hop.read(12)
    rows = hop.rows()
    hop.trim()
    assert (hop.versions("_delta_log"), hop.versions(KEPT)) == ([9, 10, 11], [])
    assert hop.rows() == rows


def test_a_reader_that_never_started_keeps_no_commit(hop: Hop) -> None:
    hop.trim()
    assert hop.versions("_delta_log") == [9, 10, 11]


def test_a_young_checkpoint_removes_nothing(hop: Hop) -> None:
    hop.read(12)
    hop.aged({0: 3_600_000, 5: 60_000})
    hop.trim()
    assert hop.versions("_delta_log") == list(range(3, 12))


def test_commits_for_a_stopped_reader_are_stored_beside_the_log(hop: Hop) -> None:
    hop.read(5)
    hop.trim()
    assert (hop.versions("_delta_log"), hop.versions(KEPT)) == ([9, 10, 11], [3, 4, 5, 6, 7, 8])
    put_back(hop.path, hop.reader)
    assert (hop.versions("_delta_log"), hop.versions(KEPT)) == (list(range(3, 12)), [])
    assert not is_cut(hop.path, hop.reader)
    assert DeltaTable(str(hop.path), version=5).version() == 5  # Spark looks at the table as it was there


def test_commits_for_a_running_reader_stay_in_the_log(hop: Hop) -> None:
    hop.read(5)
    hop.beats(NOW - 1_000)
    hop.trim()
    assert (hop.versions("_delta_log"), hop.versions(KEPT)) == (list(range(3, 12)), [])


def test_a_killed_driver_is_not_a_running_reader(hop: Hop) -> None:
    hop.read(5)
    hop.beats(NOW - 120_000)
    hop.trim()
    assert hop.versions(KEPT) == [3, 4, 5, 6, 7, 8]


def test_commits_are_kept_for_seven_days_at_most(hop: Hop) -> None:
    hop.read(5)
    hop.aged({0: 8 * DAY_MS, 7: 6 * DAY_MS})
    hop.trim()
    hop.trim()  # what has moved is looked at the next time
    assert (hop.versions("_delta_log"), hop.versions(KEPT)) == ([9, 10, 11], [6, 7, 8])
    put_back(hop.path, hop.reader)
    assert is_cut(hop.path, hop.reader)
    assert begins_at(hop.path, hop.reader) == 5  # version 6


def test_a_failure_to_shorten_the_log_stops_no_stream(hop: Hop, monkeypatch: pytest.MonkeyPatch) -> None:
    hop.read(5)
    monkeypatch.setattr(hop_log, "WAITS_S", 0.0)
    with hop_log._lock(hop.path):
        hop.trim()
    assert hop.versions("_delta_log") == list(range(12))


def test_files_kept_beside_the_log_are_not_unused(hop: Hop) -> None:
    hop.read(5)
    hop.trim()
    table = DeltaTable(str(hop.path))
    assert not table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)


@pytest.fixture
def late(tmp_path: Path) -> Play:
    """A reader of batch 0, whose hop's log begins with batch 2."""
    play = Play(BY_V, tmp_path)
    for second in range(3):
        play.batch([play.row("events", ms(second), id="a", v=second)], at_ms=ms(second))
        if not second:
            play.hop(READER, at_ms=ms(second))
    hop = Hop(tmp_path)
    hop.read(2)
    DeltaTable(str(hop.path)).create_checkpoint()
    for version in (0, 1, 2):
        (hop.path / "_delta_log" / f"{version:020d}.json").unlink()
    play.start(READER)
    return play


def test_a_reader_that_starts_too_late_reports_the_lost_commits(late: Play) -> None:
    with pytest.raises(DataLost) as told:
        late.batch(at_ms=ms(9), sub=READER)
    assert str(told.value) == (
        "hop_by_v of events: the commits of batches 1 until 2 are missing from its log, and by_v_source has not read "
        "them; batches are never skipped silently: their rows are still in the table (batch_id >= 1 AND batch_id < 2); "
        "accept the loss here and continue from batch 2: "
        "tidemark accept-loss play by_v --source by_v_source --partition 0 "
        "--until 2 --by NAME --reason TEXT"
    )


def accepted(play: Play, until: int) -> None:
    asked = argparse.Namespace(
        topology="play",
        sub_topology=READER,
        source="by_v_source",
        partition=0,
        until=until,
        by="Ann",
        reason="holiday",
        topic_id=None,
    )
    loss_plan(asked, play.home).apply()
    play.start(READER)


def test_an_accepted_loss_of_a_hop_is_recorded(late: Play) -> None:
    accepted(late, 2)
    late._batches[f"{READER}/hop"] = 2  # what Spark reads of the log that is there
    late.hop(READER, at_ms=ms(9))
    (read,) = [*late.reads(READER).values()][-1]
    assert (read["source"], read["partition"], read["until_offset"]) == ("by_v_source", 0, 3)
    assert (read["lost_from_offset"], read["lost_until_offset"]) == (1, 2)
    assert [(row["v"], row["n"]) for row in late.rows("counts", READER)] == [(0, 1), (2, 1)]
    late.start(READER)  # Spark's checkpoint still has the older position: nothing more is lost
    late.batch(at_ms=ms(10), sub=READER)


def test_a_loss_that_grew_after_acceptance_is_reported(late: Play) -> None:
    accepted(late, 1)
    with pytest.raises(DataLost, match="batches 1 until 2"):
        late.batch(at_ms=ms(9), sub=READER)
