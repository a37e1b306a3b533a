"""Damage to checkpoint, journal or tables is named; sound streams start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from support.command_line import tidemark
from support.crashes import Crash, crash_at
from support.play import Play
from support.topologies import (
    NEWEST,
    aggregate,
    current,
    map_of,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.cli.repair.doctor import doctor, removal_plan
from tidemark.cli.shared.plan import PlanChanged
from tidemark.control.folder import AlreadyRunning, Control
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.storage.delta.tables import create, scan
from tidemark.storage.delta.types import TypesChanged
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, Inconsistency, Unsound, findings, refuse_unless_sound
from tidemark.stream.startup.source_list import follow

T = 1_400_000_000_000
SUB = "events"


class Checkpointed:
    """A stream with Spark's checkpoint: a plan and a commit per batch.

    A batch reads `rows` records of the one partition of `events`; the board gets a row for each that is new.
    """

    def __init__(self, play: Play, read: int = 0) -> None:
        self.play, self.read = play, read
        self.stream = play.stream(SUB)
        self.checkpoint = self.stream.control / "checkpoint"
        self.journal = self.stream.control / "journal"
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)

    def plan(self, batch_id: int, end: int, topic: str = "events") -> None:
        """Writes a plan; ticks come first, an empty source is a hyphen."""
        lines = ["v1", '{"batchWatermarkMs":0}', str(batch_id), "-", json.dumps({topic: {"0": end}})]
        (self.checkpoint / "offsets" / str(batch_id)).write_text("\n".join(lines))
        (self.checkpoint / "offsets" / f".{batch_id}.crc").write_bytes(b"crc")

    def commit(self, batch_id: int) -> None:
        (self.checkpoint / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def batch(self, batch_id: int, rows: int) -> None:
        self.decide(batch_id, rows)
        self.commit(batch_id)

    def decide(self, batch_id: int, rows: int) -> None:
        records = [self.play.row("events", T + self.read + n, id="a", v=self.read + n) for n in range(rows)]
        self.read += rows
        self.plan(batch_id, self.read)
        self.play.process(batch_id, records, at_ms=T + batch_id)

    def findings(self) -> list[Inconsistency]:
        return findings(evidence(self.stream))

    def faults(self) -> list[Fault]:
        return [finding.fault for finding in self.findings()]

    def table(self, name: str) -> Path:
        return self.stream.home / name

    def keep(self, path: Path) -> Path:
        """A copy of the folder *path*."""
        return Path(shutil.copytree(path, self.play.home / "kept" / path.name))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Checkpointed:
    """Three batches: 2 records, none, 1 record."""
    stream = Checkpointed(Play(NEWEST, tmp_path_factory.mktemp("played")))
    for batch_id, rows in enumerate([2, 0, 1]):
        stream.batch(batch_id, rows)
    return stream


@pytest.fixture
def stream(played: Checkpointed, tmp_path: Path) -> Checkpointed:
    """The same, for one test."""
    return Checkpointed(played.play.copied_to(tmp_path / "warehouse"), played.read)


def put_back(kept: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(kept, path)


def test_a_stream_is_sound_before_and_after_every_batch(tmp_path: Path) -> None:
    stream = Checkpointed(Play(NEWEST, tmp_path / "warehouse"))
    assert stream.faults() == []
    stream.plan(0, 0)
    assert stream.faults() == []
    for batch_id, rows in enumerate([0, 2, 0, 0, 1, 0]):
        stream.decide(batch_id, rows)
        assert stream.faults() == []
        stream.commit(batch_id)
        assert stream.faults() == []


@pytest.mark.parametrize(
    "step",
    ["decided", "committed changes", "committed board", "measured", "committed operator_batches", "committed batches"],
)
def test_a_decided_batch_in_only_some_tables_is_sound(stream: Checkpointed, step: str) -> None:
    stream.play.start(reached=crash_at(step))
    with pytest.raises(Crash):
        stream.decide(3, 1)
    assert stream.faults() == []
    stream.play.start()
    stream.play.process(3, [], at_ms=T + 3)
    stream.commit(3)
    assert stream.faults() == []
    assert scan(stream.table("board")).collect()["v"].to_list() == [3]


@pytest.fixture
def in_parts(tmp_path: Path) -> Checkpointed:
    """Plays two records, then a killed batch of five in parts.

    A driver has decided a first part of two of them.
    """
    stream = Checkpointed(Play(NEWEST, tmp_path / "warehouse"))
    stream.batch(0, 2)
    cut = parse(tomllib.loads(NEWEST.replace("bound", "max_records = 2\nbound")), file="play.toml")
    stream.play.topology = replace(cut, facts_every_ms=0)
    stream.play.start(reached=crash_at("measured"))
    with pytest.raises(Crash):
        stream.decide(1, 5)
    return stream


def test_a_partly_decided_batch_is_sound_until_it_completes(in_parts: Checkpointed) -> None:
    assert in_parts.faults() == []
    kept = in_parts.keep(in_parts.stream.control)
    in_parts.play.start()
    rest = [in_parts.play.row("events", T + n, id="a", v=n) for n in range(3, 7)]
    in_parts.play.process(1, [{**row, "offset": n} for row, n in zip(rest, range(3, 7), strict=True)], at_ms=T + 1)
    assert in_parts.faults() == []
    in_parts.commit(1)
    assert in_parts.faults() == []
    in_parts.batch(2, 0)
    assert in_parts.faults() == []
    put_back(kept / "journal", in_parts.journal)
    in_parts.commit(1)
    assert Fault.CHECKPOINT_AHEAD in in_parts.faults()


def test_a_missing_checkpoint_is_reported(stream: Checkpointed) -> None:
    shutil.rmtree(stream.checkpoint)
    assert stream.faults() == [Fault.CHECKPOINT_GONE]


def test_a_rolled_back_checkpoint_is_behind(stream: Checkpointed) -> None:
    kept = stream.keep(stream.checkpoint)
    stream.batch(3, 1)
    put_back(kept, stream.checkpoint)
    (found,) = stream.findings()
    assert found.fault is Fault.CHECKPOINT_BEHIND
    assert found.seen == "the checkpoint has planned batches until 2, but batch 3 was decided"


def test_a_copied_checkpoint_that_has_read_less_is_behind(stream: Checkpointed) -> None:
    for batch_id in range(7):
        stream.plan(batch_id, 2)
        stream.commit(batch_id)
    (found,) = stream.findings()
    assert found.fault is Fault.CHECKPOINT_BEHIND
    assert found.seen == (
        "topic 'events', partition 0: by batch 6 the checkpoint has read until offset 2, "
        "but the stream has read until 3"
    )


def test_a_checkpoint_that_has_read_more_is_ahead(stream: Checkpointed) -> None:
    stream.plan(3, 9)
    assert stream.faults() == []  # planned alone is not read
    stream.commit(3)
    (found,) = stream.findings()
    assert found.fault is Fault.CHECKPOINT_AHEAD
    assert "has read until offset 9, but the stream has read until 3" in found.seen


def test_restoring_all_but_the_checkpoint_leaves_it_ahead(stream: Checkpointed) -> None:
    journal, tables = stream.keep(stream.journal), stream.keep(stream.stream.home)
    stream.batch(3, 1)
    put_back(journal, stream.journal)
    put_back(tables, stream.stream.home)
    assert stream.faults() == [Fault.CHECKPOINT_AHEAD]


def test_the_checkpoint_of_another_stream_reads_other_topics(stream: Checkpointed) -> None:
    for batch_id in range(4):
        stream.plan(batch_id, 3, topic="orders")
    stream.commit(3)
    (found,) = stream.findings()
    assert found.fault is Fault.CHECKPOINT_OF_ANOTHER
    assert found.seen == "the checkpoint reads orders, but the stream reads events"


WHOLE = 'v1\n{"batchWatermarkMs":0}\n3\n-\n{"events":{"0":4}}'


@pytest.mark.parametrize("torn", ["", "v1", WHOLE[:20], WHOLE[:-1], WHOLE[:-18]])
def test_an_unused_torn_plan_can_be_removed(stream: Checkpointed, torn: str) -> None:
    (stream.checkpoint / "offsets" / "3").write_text(torn)
    (stream.checkpoint / "offsets" / ".3.crc").write_bytes(b"crc")
    (found,) = stream.findings()
    assert found.fault is Fault.CHECKPOINT_TORN
    assert found.ways[0].endswith("tidemark doctor play events --apply remove-torn")
    layout = Layout(stream.play.home)
    assert doctor(stream.play.topology, layout, SUB) == {SUB: found.lines}
    removal_plan(stream.play.topology, layout, SUB).apply()
    assert doctor(stream.play.topology, layout, SUB) == {SUB: ""}
    assert not list((stream.checkpoint / "offsets").glob("*3*"))
    stream.batch(3, 1)
    assert stream.faults() == []


def test_a_torn_commit_can_be_removed_and_its_batch_repeated(stream: Checkpointed) -> None:
    (stream.checkpoint / "commits" / "2").write_text("v1\n")
    assert stream.faults() == [Fault.CHECKPOINT_TORN]
    removal_plan(stream.play.topology, Layout(stream.play.home), None).apply()
    assert stream.faults() == []
    stream.play.start()
    stream.play.process(2, [], at_ms=T + 2)
    assert scan(stream.table("board")).collect()["v"].to_list() == [2]


def test_a_torn_plan_that_was_decided_is_not_removed(stream: Checkpointed) -> None:
    stream.decide(3, 1)
    plan = stream.checkpoint / "offsets" / "3"
    plan.write_text("")
    removal = removal_plan(stream.play.topology, Layout(stream.play.home), SUB)
    assert removal.effect.startswith("play/events: checkpoint_torn: ")
    assert removal.apply() == "there was nothing to remove"
    assert plan.exists()


def test_nothing_is_removed_while_a_driver_runs(stream: Checkpointed) -> None:
    plan = stream.checkpoint / "offsets" / "3"
    plan.write_text("")
    driver = Control(stream.stream.control)
    driver.acquire()
    removal = removal_plan(stream.play.topology, Layout(stream.play.home), SUB)
    with pytest.raises(AlreadyRunning):
        removal.apply()
    driver.release()
    with pytest.raises(PlanChanged, match="a driver has run since"):
        removal.apply()
    assert plan.exists()


def test_only_files_that_were_shown_are_removed(stream: Checkpointed) -> None:
    shown, later = (stream.checkpoint / log / "3" for log in ("offsets", "commits"))
    shown.write_text("")
    removal = removal_plan(stream.play.topology, Layout(stream.play.home), SUB)
    later.write_text("")
    assert removal.apply() == f"removed {shown}"
    assert (shown.exists(), later.exists()) == (False, True)


def test_files_stay_if_a_driver_has_run_since_the_look(stream: Checkpointed) -> None:
    plan = stream.checkpoint / "offsets" / "3"
    plan.write_text("")
    removal = removal_plan(stream.play.topology, Layout(stream.play.home), SUB)
    driver = Control(stream.stream.control)
    driver.acquire()
    driver.release()
    with pytest.raises(PlanChanged, match="a driver has run since its files were looked at; they stay"):
        removal.apply()
    assert plan.exists()
    assert not driver.is_held()


def test_a_missing_plan_of_a_completed_batch_is_torn(stream: Checkpointed) -> None:
    (stream.checkpoint / "offsets" / "2").unlink()
    assert Fault.CHECKPOINT_TORN in stream.faults()


def test_a_missing_journal_is_reported(stream: Checkpointed) -> None:
    shutil.rmtree(stream.journal)
    assert stream.faults() == [Fault.JOURNAL_GONE]
    shutil.rmtree(stream.stream.home)
    assert stream.faults() == [Fault.JOURNAL_GONE]


@pytest.mark.parametrize("kind", ["data", "facts"])
def test_a_damaged_entry_of_the_journal_is_named(stream: Checkpointed, kind: str) -> None:
    entry = stream.journal / f"{2:020d}.{kind}.zip"
    entry.write_bytes(entry.read_bytes()[:100])
    (found,) = stream.findings()
    assert found.fault is Fault.JOURNAL_UNREADABLE
    assert f"{kind} of batch 2" in found.seen


def test_tables_that_are_ahead_of_the_journal_are_named(stream: Checkpointed) -> None:
    for kind in ("data", "facts"):
        (stream.journal / f"{2:020d}.{kind}.zip").unlink()
    found = {finding.fault: finding.seen for finding in stream.findings()}
    assert set(found) == {Fault.TABLES_AHEAD, Fault.CHECKPOINT_AHEAD}
    assert found[Fault.TABLES_AHEAD].startswith("the newest decided batch is 0, but newer batches are in batches, bo")


@pytest.mark.parametrize("name", ["changes", "board", "batches", "operator_batches"])
def test_a_deleted_table_is_reported(stream: Checkpointed, name: str) -> None:
    shutil.rmtree(stream.table(name))
    (found,) = stream.findings()
    assert found.fault is Fault.TABLE_DELETED
    assert found.seen == f"{stream.table(name)}: it no longer exists, but had rows of batch 2"


def test_a_missing_table_that_never_had_rows_is_sound(stream: Checkpointed) -> None:
    shutil.rmtree(stream.table("dead_letters"))
    assert stream.faults() == []


def test_an_older_copy_of_a_table_is_reported_at_any_age(stream: Checkpointed) -> None:
    bad = {
        "source": "events", "partition": 0, "offset": 3, "value": b"?", "reason": "null_key", "timestamp_ms": None,
    }  # fmt: skip
    kept = stream.keep(stream.table("dead_letters"))
    stream.plan(3, 4)
    stream.play.process(3, [bad], at_ms=T + 3)
    stream.commit(3)
    stream.play._offsets["events", 0] = stream.read = 4
    for batch_id in range(4, 12):  # more than the journal keeps
        stream.batch(batch_id, 1)
    assert stream.faults() == []
    put_back(kept, stream.table("dead_letters"))
    (found,) = stream.findings()
    assert found.fault is Fault.TABLE_RESTORED
    assert "was 3, but now is none" in found.seen


@pytest.mark.parametrize("name", ["changes", "board"])
def test_a_restored_table_is_reported_until_it_is_undone(stream: Checkpointed, name: str) -> None:
    DeltaTable(str(stream.table(name))).restore(1)
    (found,) = stream.findings()
    assert found.fault is Fault.TABLE_RESTORED
    assert found.seen == f"{stream.table(name)} was restored to version 1, so that newer rows are missing"
    way, _, command = found.ways[0].partition(": ")
    assert way == "restore it to version 2, the one with its newest batch"
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    assert stream.faults() == []


def test_a_table_restored_to_an_instant_is_reported(stream: Checkpointed) -> None:
    table = DeltaTable(str(stream.table("changes")))
    made_at_ms = {commit["version"]: commit["timestamp"] for commit in table.history()}[1]
    table.restore(datetime.fromtimestamp(made_at_ms / 1000, UTC))
    assert stream.faults() == [Fault.TABLE_RESTORED]


def test_deleted_rows_are_sound(stream: Checkpointed) -> None:
    DeltaTable(str(stream.table("dead_letters"))).delete()
    DeltaTable(str(stream.table("operator_batches"))).delete("batch_id < 2")
    assert stream.faults() == []


def test_a_table_whose_log_is_damaged_is_named(stream: Checkpointed) -> None:
    log = stream.table("changes") / "_delta_log" / f"{3:020d}.json"
    log.write_text('{"commitInfo":{"ti')
    (found,) = stream.findings()
    assert found.fault is Fault.TABLE_UNREADABLE
    assert found.seen.startswith(f"{log}: it is damaged (JSONDecodeError: ")


def test_a_driver_does_not_start_on_contradictions_and_lists_all(stream: Checkpointed) -> None:
    refuse_unless_sound(evidence(stream.stream))
    shutil.rmtree(stream.checkpoint)
    shutil.rmtree(stream.table("changes"))
    with pytest.raises(Unsound) as refused:
        refuse_unless_sound(evidence(stream.stream))
    for told in (
        "tidemark doctor play events",
        "checkpoint_gone: ",
        "table_deleted: ",
        "remedy: start from the beginning",
    ):
        assert told in str(refused.value)


def test_the_job_exits_1_before_a_batch_and_heartbeats_say_why(stream: Checkpointed, tmp_path: Path) -> None:
    file = tmp_path / "play.toml"
    file.write_text(NEWEST)
    shutil.rmtree(stream.checkpoint)
    job = Path(__file__).parents[2] / "jobs" / "stream.py"
    command = [sys.executable, str(job), "--warehouse", str(stream.play.home), "--topology", str(file)]
    command += ["--sub-topology", SUB, "--bootstrap", "nobody:1"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    heartbeat = Control(stream.stream.control).heartbeat()
    assert heartbeat is not None
    assert heartbeat.reason is not None
    assert heartbeat.reason.startswith("Unsound: checkpoint, journal and tables are inconsistent")
    seen = tidemark(tmp_path, "--warehouse", str(stream.play.home), "why", str(file)).stdout
    assert "checkpoint_gone: " in seen
    assert r"\n" not in seen
    assert not stream.checkpoint.exists()


def test_the_exit_status_of_the_command_tells_soundness(stream: Checkpointed, tmp_path: Path) -> None:
    file = tmp_path / "play.toml"
    file.write_text(NEWEST)
    command = ("--home", str(tmp_path), "doctor", str(file))
    well = tidemark(tmp_path, *command)
    assert (well.returncode, well.stdout) == (0, "events: sound\n"), well.stderr
    shutil.rmtree(stream.journal)
    ill = tidemark(tmp_path, *command)
    assert ill.returncode == 1
    assert ill.stdout.startswith("events: unsound\njournal_gone: ")


def test_a_renamed_stream_is_refused_with_the_line_to_restore_it(tmp_path: Path) -> None:
    of_first_name = NEWEST.replace('kind = "source"', 'kind = "source"\nsub_topology = "first"', 1)
    before = Play(of_first_name, tmp_path)
    before.batch([before.row("events", T, id="a", v=1)], at_ms=T)
    renamed = Play(NEWEST, tmp_path).topology
    refused = evidence(Stream(renamed, renamed.sub_topology(SUB), Layout(tmp_path)))
    with pytest.raises(Unsound) as raised:
        refuse_unless_sound(refused)
    assert [finding.fault for finding in findings(refused)] == [Fault.STREAM_RENAMED]
    assert 'write sub_topology = "first" below [operators.events]' in str(raised.value)
    assert not Layout(tmp_path).stream("play", SUB).exists()

    named = evidence(Stream(before.topology, before.topology.sub_topology("first"), Layout(tmp_path)))
    assert Fault.STREAM_RENAMED not in [finding.fault for finding in findings(named)]
    before.start(epoch=2)
    before.batch([before.row("events", T + 1, id="a", v=2)], at_ms=T + 1)
    assert [(row["id"], row["v"]) for row in before.rows("board")] == [("a", 2)]


def reading(*names: str, was: Mapping[str, str] = MappingProxyType({}), **topics: str) -> str:
    """Reads the sources *names*, whose topics have the same names unless *topics* says otherwise, into one table."""
    sources: dict[str, Any] = {}
    for name in names:
        former = {"was": was[name]} if name in was else {}
        sources[name] = source("id string, v int", topic=topics.get(name, name), **former)
    both = {"both": {"kind": "union", "inputs": list(names)}} if len(names) > 1 else {}
    newest = table("both" if both else names[0], columns=["v"])
    return topology_of(**sources, **both, newest=newest, board=sink("newest", table="board"))


BEGIN = 'write starting_offsets = "earliest" (or "latest", or an instant) '
NAMED = 'write sub_topology = "a" below [operators.'
FORGET = "to read its sources from the start, move "


@pytest.mark.parametrize(
    ("now", "sub", "seen", "ways"),
    [
        (reading("a", "b"), "a", None, []),
        (reading("a", "b", "c"), "a", None, []),
        (reading("a"), "a", None, []),
        (
            reading("a", "b", b="c"), "a", "the source b: was topic b, is topic c",
            [f"{BEGIN}below [operators.b]", "restore the previous file"],
        ),
        (
            reading("a", "renamed", renamed="b"), "a",
            "the source renamed: it reads topic b, which the source b has read",
            ['write was = "b" below [operators.renamed]', f"{BEGIN}there"],
        ),
        (reading("a", "renamed", renamed="b", was={"renamed": "b"}), "a", None, []),
        # A stream has the name of its first source, unless the file says otherwise.
        (reading("c", "a", "b"), "c", "were read by the stream a", [f"{NAMED}c]", FORGET]),
        (reading("b", "a"), "b", "were read by the stream a", [f"{NAMED}b]", FORGET]),
        (reading("renamed", "b", renamed="a"), "renamed", "were read by the stream a", [f"{NAMED}renamed]", FORGET]),
    ],
    ids=[
        "same", "added", "removed", "other topic", "renamed", "was named", "added first", "another order",
        "first renamed",
    ],
)  # fmt: skip
def test_other_sources_are_told_from_a_foreign_checkpoint_and_a_renamed_stream(
    tmp_path: Path, now: str, sub: str, seen: str | None, ways: list[str]
) -> None:
    before = Play(reading("a", "b"), tmp_path)
    before.batch([before.row("a", T, id="a", v=1)], at_ms=T)
    follow(before.control, before.topology.sub_topologies[0], -1)  # as its driver does at the start
    plans = before.control.home / "checkpoint" / "offsets"
    plans.mkdir(parents=True)
    ends = [json.dumps({topic: {"0": end}}) for topic, end in (("a", 1), ("b", 0))]
    (plans / "0").write_text("\n".join(["v1", '{"batchWatermarkMs":0}', "0", *ends]))
    changed = Play(now, tmp_path)
    found = findings(evidence(changed.stream(sub)))
    if seen is None:
        assert found == []
        return
    (finding,) = found
    assert finding.fault is (Fault.TOPOLOGY_CHANGED if sub == "a" else Fault.STREAM_RENAMED)
    assert seen in finding.seen
    for way, expected in zip(finding.ways, ways, strict=True):
        assert way.startswith(expected)


KEPT = topology_of(
    events=source("id string, v int, w int"),
    mapped=map_of(select={"id": "id", "v": "v", "w": "w"}),
    latest=table("mapped", columns=["v"]),
    board=current("latest", "board"),
    sums=aggregate("mapped", key=["id"], aggregates={"most": "max(w)"}, select={"most": "most"}),
    log=sink("mapped", table="log"),
    sent=repartition("latest", key=["v"], id=["id"], columns=["v"]),
    per_v=aggregate("sent", aggregates={"n": "count(*)"}),
)
TO_BIGINT = "was int, is bigint"
OTHER_TYPES = {
    ("v int", "v bigint"): [
        f"column v of operators.latest: {TO_BIGINT}", f"column v of operators.sent: {TO_BIGINT}",
        f"column v of the table board: {TO_BIGINT}", f"column v of the table changes_of_board: {TO_BIGINT}",
        f"column v of the table log: {TO_BIGINT}",
    ],
    ('v = "v"', 'v = "v::bigint * 2"'): [
        f"column v of operators.latest: {TO_BIGINT}", f"column v of operators.sent: {TO_BIGINT}",
        f"column v of the table board: {TO_BIGINT}", f"column v of the table changes_of_board: {TO_BIGINT}",
        f"column v of the table log: {TO_BIGINT}",
    ],
    ("w int", "w double"): [
        "column @most of operators.sums: was int, is double",
        "column most of operators.sums: was int, is double", "column w of the table log: was int, is double",
    ],
    ('w = "w"', 'w = "w::double"'): [
        "column @most of operators.sums: was int, is double",
        "column most of operators.sums: was int, is double", "column w of the table log: was int, is double",
    ],
}  # fmt: skip


def changed_types(play: Play) -> list[str]:
    return sorted(f.seen for f in findings(evidence(play.stream(SUB))) if f.fault is Fault.TOPOLOGY_CHANGED)


def test_a_column_that_is_kept_must_keep_its_type(tmp_path: Path) -> None:
    before = Play(KEPT, tmp_path)
    before.batch([before.row("events", T, id="a", v=1, w=1)], at_ms=T)
    for (old, new), changes in OTHER_TYPES.items():
        assert KEPT.count(old) == 1
        other = Play(KEPT.replace(old, new), tmp_path)
        assert changed_types(other) == changes
        with pytest.raises(TypesChanged) as refused:
            other.start()
        told = [change for change in changes if "of operators." in change]
        *found, remedy = str(refused.value).split("; ")
        assert sorted(found) == told
        assert remedy.startswith("restore the previous file, or give the changed operator or table a new name")
    # A column that nobody keeps may have another type, and a new one any.
    other = Play(KEPT.replace("w int", "w int, x double").replace('w = "w"', 'w = "w", x = "x"'), tmp_path)
    other.start()
    assert changed_types(other) == changed_types(before) == []
    before.start(epoch=2)
    before.batch([before.row("events", T + 1, id="a", v=2, w=1)], at_ms=T + 1)
    assert [(row["id"], row["v"]) for row in before.rows("board")] == [("a", 2)]
    # Somebody replaces a table while the stream runs.
    replaced = scan(before.table("log")).collect().with_columns(pl.col("v").cast(pl.String))
    write_deltalake(str(before.table("log")), replaced.to_arrow(), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(TypesChanged, match="column v of the table log: was string, is int; "):
        before.batch([before.row("events", T + 2, id="a", v=3, w=1)], at_ms=T + 2)
    assert before.engine(SUB).reached[0] == 1


def test_a_table_that_has_instants_as_numbers_gets_no_timestamps(tmp_path: Path) -> None:
    counts = aggregate("events", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"})
    play = Play(topology_of(events=source(), counts=counts, log=sink("counts", table="log")), tmp_path)
    create(play.table("log"), pa.schema([("id", pa.string()), ("window_start", pa.int64())]))
    change = "column window_start of the table log: was bigint, is timestamp"
    assert changed_types(play) == [change]
    with pytest.raises(TypesChanged, match=f"^{change}; "):
        play.start()
