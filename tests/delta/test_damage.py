"""A damaged file of a control folder is a finding with a remedy, or does not matter and a driver starts.

One small warehouse is made per module; each case damages a copy of its control folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stream import arguments
from support.command_line import CommandOutput, tidemark
from support.control_files import unlisted
from support.play import NOON, Play
from support.topologies import aggregate, current, repartition, source, table, topology_of
from tidemark.cli.repair.doctor import doctor
from tidemark.control import cluster_manager
from tidemark.control.files import FILES, listed, not_files
from tidemark.control.folder import (
    AcceptedLoss,
    AcceptedRecord,
    Control,
    Heartbeat,
    StreamState,
    TimeReset,
    WindowReopening,
)
from tidemark.errors import InvalidArgument, UnreadableFile
from tidemark.facts.history import history
from tidemark.facts.latency_places import ChartSpan
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.query.sql import Warehouse as SqlWarehouse
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.pages.topology_page import history_page, operator_page, start_page, topology_page
from tidemark.reports.promises import Promises
from tidemark.sla.page import sla_page
from tidemark.storage.delta.data_files import damaged_data_files
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.tables import scan
from tidemark.stream.query import RunOptions
from tidemark.stream.run import run_stream
from tidemark.stream.startup.damage import damages
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.fatal import FailedBatch
from tidemark.stream.startup.soundness import Fault, Unsound, findings, refuse_unless_sound
from tidemark.stream.startup.source_list import follow
from tidemark.stream.startup.state_compatibility import meanings
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import why
from tidemark_airflow.operators.driver import Failures, Launch

SUB = "events"
TOML = "flush_keys = 3\n" + topology_of(
    {"name": "NAME"},
    events=source(),
    newest=table(columns=["v"]),
    board=current("newest", "board"),
    sums=aggregate(key=["id"], aggregates={"n": "count(*)"}),
    by_id=repartition("newest", key=["id"], id=["id"], columns=["v"]),
    ever=aggregate("by_id", aggregates={"ids": "count(*)"}),
)
BATCHES = 6
RANDOM_CASES = int(os.environ.get("TIDEMARK_DAMAGES", "2"))


class Started(Exception):
    """A driver has found everything sound, and would start Spark."""


class Warehouse:
    """The stream of a play, whose control folder has a file of each kind."""

    def __init__(self, play: Play) -> None:
        self.play, self.stream = play, play.stream(SUB)
        self.control = self.stream.control

    def start(self) -> str:
        """Starts a driver; returns the reason of its end, or the error that it raises."""

        def session() -> None:
            raise Started

        file = self.play.home / "topology.toml"
        file.write_text(self.play.toml)
        line = ["--warehouse", str(self.play.home), "--topology", str(file), "--sub-topology", SUB]
        try:
            run_stream(arguments().parse_args([*line, "--bootstrap", "b:1"], RunOptions()), session)  # type: ignore[arg-type]
        except UnreadableFile as error:
            return f"UnreadableFile: {error}"
        beat = Control(self.control).heartbeat()
        return (beat and beat.reason) or ""

    def go_on(self) -> list[tuple[Any, ...]]:
        """Runs one more batch; returns the rows of its table and of its states."""
        self.play.start(SUB, epoch=9)
        self.play.batch([self.play.row("events", NOON + 100, id="z", v=9)], at_ms=NOON + 100)
        memory = self.play.engine(SUB)._steps.memory
        states = [row for _, kept in sorted(memory.kept()) for row in kept.all().drop("_put", strict=False).rows()]
        return sorted(map(str, [*scan(self.stream.home / "board").select("id", "v").collect().rows(), *states]))


def with_checksums(path: Path, content: bytes) -> None:
    """Writes a file as Spark does, with the checksums that Hadoop's local file system has beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    sums = b"".join(zlib.crc32(content[at : at + 512]).to_bytes(4, "big") for at in range(0, len(content), 512))
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)


def fill(home: Path, name: str) -> Warehouse:
    """Plays batches, and lets everybody write into the control folder."""
    play = Play(TOML.replace("NAME", name), home, facts_every_ms=10**9)
    made = Warehouse(play)
    for number in range(BATCHES):
        if number == 3:
            play.start(SUB, epoch=2)  # which flushes facts
        rows = [play.row("events", NOON + number, id=id_, v=number) for id_ in "abc"[: 1 + number % 2]]
        play.batch(rows, at_ms=NOON + number)
        lines = [
            "v1",
            '{"batchWatermarkMs":0,"batchTimestampMs":1}',
            str(number),
            json.dumps({"events": {"0": play.broker.read_to()["events"][0]}}),
        ]
        with_checksums(made.control / "checkpoint" / "offsets" / str(number), "\n".join(lines).encode())
        with_checksums(made.control / "checkpoint" / "commits" / str(number), b'v1\n{"nextBatchWatermarkMs":0}')
    with_checksums(made.control / "checkpoint" / "metadata", b'{"id":"6f636fa9-3a6d-47f8-819b-bbea6db469e7"}')
    with_checksums(made.control / "checkpoint" / "sources" / "1" / "0", b'\0v1\n{"events":{"0":0}}')
    control = Control(made.control)
    epoch = control.acquire()
    control.release()
    control.keep_meanings(meanings(made.stream.sub))
    follow(control, made.stream.sub, -1)
    control.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="l", at_ms=NOON, pid=1, doing="batch 5"))
    control.adopt("l", by="task")
    control.kill_for("l", "", by="task")
    control.keep_failed_batch(FailedBatch(3, 1, "ValueError: no", {"events": {0: (1, 2)}}).as_kept)
    control.accept_record(
        AcceptedRecord(topic="events", partition=7, offset=1, batch_id=3, by="p", reason="r", at_ms=1)
    )
    control.accept_loss(
        AcceptedLoss(source="events", partition=7, from_offset=1, until_offset=2, by="p", reason="r", at_ms=1)
    )
    control.request_time_reset(
        TimeReset(id="t", source="events", partition=7, to_ms=1, from_offset=0, by="p", reason="r", at_ms=1)
    )
    control.request_reopening(WindowReopening(id="r1", operator="gone", late=((1, 0, 2),), at_ms=1))
    control.keep_lineage_sent({"eventType": "RUNNING"})
    cluster_manager.record(control.home, cluster_manager.ManagedDriver("l", cluster_manager.ClusterManager.YARN, "a"))
    others = {
        "launch.json": asdict(Launch("l", 1)),
        "failures.json": asdict(Failures("l", "failed", 1)),
        "schemas.json": {},
        "running.json": {"at_ms": 1, "host": "h", "launches": {}},
        "driver.pid.json": {"pid": 1, "started": 1},
    }
    for file, content in others.items():
        (made.control / file).write_text(json.dumps(content))
    (made.control / "command.txt").write_text("stream.py")
    (made.control / "drain.told").touch()
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    return fill(tmp_path_factory.mktemp("made"), "shop")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Another stream, which has read the same."""
    return fill(tmp_path_factory.mktemp("other"), "store")


@pytest.fixture(scope="module")
def undamaged(made: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """What one more batch leaves in an undamaged warehouse."""
    copied = copy(made, tmp_path_factory.mktemp("undamaged") / "w")
    assert findings(evidence(copied.stream)) == []
    assert "Started" in copied.start()
    return copied.go_on()


def copy(made: Warehouse, home: Path) -> Warehouse:
    """Copies the warehouse; files that nobody changes in place have the same blocks."""
    shutil.copytree(made.play.home / "streams", home / "streams", copy_function=os.link)
    shutil.copytree(made.play.home / "control", home / "control")
    shutil.copy(made.play.home / "tidemark.json", home / "tidemark.json")
    play = made.play.copy(home)
    play.broker = made.play.broker.copy()
    return Warehouse(play)


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :] if content else content


WAYS: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "flipped": lambda content: flipped(content, len(content) // 2),
    "no text": lambda content: b"\xff\xfe" + content,
    "another type": lambda content: b"[1]",
    "nested": lambda content: b"[" * 100_000,
    "missing": lambda content: None,
}
"""Ways to damage a file; None: there is none any more."""
OTHERS = {*WAYS} - {"missing"}
REQUESTS = ("meanings.json", "sources.json", "loss.json", "accepted_records.json", "time_resets.json", "reopen_r1.json")
NEWEST = f"checkpoint/offsets/{BATCHES - 1}"
OLD = BATCHES - 2
MATTERS = {
    **dict.fromkeys(REQUESTS, OTHERS | {"of another stream"}),
    # Archives may begin with other bytes.
    "journal/N.data.zip": {*WAYS, "of another stream"} - {"no text"},
    "journal/N.facts.zip": {*WAYS, "of another stream"} - {"no text", "missing"},
    "state/N/N/ID.run": {*WAYS, "of another stream"},
    "checkpoint/metadata": OTHERS,
    NEWEST: {*WAYS},
    f"checkpoint/offsets/{OLD}": {*WAYS},
    f"checkpoint/commits/{BATCHES - 1}": OTHERS,
}
"""By file, the ways of damage for which no driver starts.

Each other file does not matter, unless a folder is in its place.
"""


def files(made: Warehouse) -> Iterator[tuple[str, Path]]:
    """Yields the files of the control folder: what a test calls each of them, and its path."""
    assert unlisted(made.control) == []
    for path in sorted(made.control.rglob("*")):
        name = path.relative_to(made.control).as_posix()
        if (kind := listed(made.control, path)) is not None and path.is_file():
            yield (name if name.startswith("checkpoint/") or name in REQUESTS else kind.name), path


@contextmanager
def damaged(contents: Mapping[Path, bytes | None]) -> Iterator[None]:
    """Has *contents* in files for a moment; None: there is no file."""
    before = {path: path.read_bytes() for path in contents}
    damage(contents)
    yield
    damage(before)


def damage(contents: Mapping[Path, bytes | None]) -> None:
    for path, content in contents.items():
        path.unlink(missing_ok=True)  # another warehouse may have the same blocks
        if content is not None:
            path.write_bytes(content)


def needed(made: Warehouse) -> set[Path]:
    """The entries, facts and runs that a start needs."""
    journal = made.control / "journal"
    flushed = 2  # of the driver that was replaced
    data = [path for path in journal.glob("*.data.zip") if int(path.name[:20]) > flushed]
    facts = [path for path in journal.glob("*.facts.zip") if int(path.name[:20]) > flushed - 1]
    return {*data, *facts, *made.control.rglob("*.run")}


def test_each_kind_of_file_is_in_the_list_and_in_the_warehouse(made: Warehouse) -> None:
    seen = {kind.name for _, path in files(made) if (kind := listed(made.control, path))}
    elsewhere = {
        "epochs/N", "news", "start_ID.json", "asking.lock", "secrets_ID.json", "query.json", "job.json", "drain.json",
        "reopen_ID.written", "checkpoint.next", "source_changes.json", "begun.json", "state/resharded.json",
        "measured/ID/N.facts.zip",
        "changed/ID/journal/N.data.zip", "changed/ID/state/N/N/ID.run", "changed/ID/left_out/ID",
    }  # fmt: skip
    assert seen | elsewhere == {file.name for file in FILES}


@pytest.mark.parametrize("way", [*WAYS, "of another stream"])
def test_a_damaged_file_is_a_finding_or_a_driver_starts(
    made: Warehouse, other: Warehouse, undamaged: list[tuple[Any, ...]], tmp_path: Path, way: str
) -> None:
    copied = copy(made, tmp_path / "w")
    is_needed, named = needed(copied), [*files(copied)]
    matter: dict[Path, bytes | None] = {}
    harmless: dict[Path, bytes | None] = {}
    for name, path in named:
        if way == "of another stream":
            twins = {each for called, each in files(other) if called == name and each.name[:20] == path.name[:20]}
            content: bytes | None = min(twins).read_bytes()
        else:
            content = WAYS[way](path.read_bytes())
        if way not in MATTERS.get(name, ()) or (name.startswith(("journal", "state")) and path not in is_needed):
            harmless[path] = content
            continue
        # The oldest and the newest of a kind are enough.
        alike = [each for called, each in named if called == name and each in is_needed]
        if path not in alike[1:-1]:
            matter[path] = content
    for group in groups(copied, matter, way):
        with damaged(group):
            seen = evidence(copied.stream)
            found, told = findings(seen), [damage.file for damage in damages(copied.control, copied.stream.home)]
        assert all(each.ways for each in found)
        for path in group if way != "missing" else ():
            assert any(str(path) in each.seen or path.name[:20] in each.seen for each in found), (path, found)
            assert path in told
        with pytest.raises(Unsound) as refused:
            refuse_unless_sound(seen)
        assert found[0].lines in str(refused.value)
    damage(harmless)
    assert damages(copied.control, copied.stream.home) == []
    assert "Started" in copied.start()
    assert copied.go_on() == undamaged


def groups(made: Warehouse, matter: Mapping[Path, bytes | None], way: str) -> Iterator[Mapping[Path, bytes | None]]:
    """Yields damages that are found together."""
    # Without the newest entry, and without a plan, it is not known what else is needed.
    apart = {*made.control.glob(f"journal/{BATCHES - 1:020d}.data.zip")}
    if way == "missing":
        apart = {*matter}
    yield from ({path: matter[path]} for path in matter if path in apart)
    if rest := {path: content for path, content in matter.items() if path not in apart}:
        yield rest


def test_a_folder_in_the_place_of_a_file_is_a_finding(made: Warehouse, tmp_path: Path) -> None:
    copied = copy(made, tmp_path / "w")
    for _, path in files(copied):
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        (found, *_) = not_files(copied.control)
        assert str(found).startswith(f"{path}: it is a folder, and must be a file; move it elsewhere; then: ")
        # A driver that cannot even take the lease says so, too.
        if path.name in {"driver.lock", "loss.json"}:
            assert damages(copied.control, copied.stream.home)[0].file == path
            assert findings(evidence(copied.stream))[0].seen == f"{path}: {found.found}"
            assert str(path) in copied.start()
        path.rmdir()
        path.write_bytes(content)


DATA: dict[str, Callable[[Path, Path], object]] = {
    "it is missing": lambda file, other: file.unlink(),
    "bytes in the table's log|it has 0 bytes": lambda file, other: replaced(file, b""),
    "in the table's log": lambda file, other: replaced(file, file.read_bytes()[:-100]),
    "its footer cannot be read": lambda file, other: replaced(file, file.read_bytes()[:-50] + b"x" * 50),
    "it has|its footer cannot be read": lambda file, other: replaced(file, other.read_bytes()[: file.stat().st_size]),
}
"""Ways to damage a data file, by what is told of it."""


def replaced(file: Path, content: bytes) -> None:
    """Replaces *file*, and no file of the same blocks."""
    file.unlink()
    file.write_bytes(content)


def test_deep_looks_at_every_data_file_of_committed_tables(made: Warehouse, tmp_path: Path) -> None:
    copied = copy(made, tmp_path / "w")
    home, stream = copied.stream.home, copied.stream
    other = max((home / "batches").glob("*.parquet"))
    newest = {}
    for name in ("changes", "board", "hop_by_id"):
        actions = pa.table(DeltaTable(str(home / name)).get_add_actions()).to_pylist()
        newest[name] = home / name / max(action["path"] for action in actions)
    file = newest["changes"]
    content = file.read_bytes()
    for told in DATA:
        DATA[told](file, other)
        ((named, found),) = damaged_data_files(home / "changes")
        assert named == file
        assert re.search(told, found), found
        # The size of a file tells of most of them, without its footer.
        assert bool([*damaged_data_files(home / "changes", footers=False)]) == ("footer" not in told)
        damage({file: content})
    assert doctor(copied.play.topology, Layout(copied.play.home), SUB, deep=True) == {SUB: ""}
    for file in newest.values():
        file.unlink()
    for footers in (False, True):
        all_found = findings(evidence(stream, look=partial(damaged_data_files, footers=footers)))
        assert [each.seen for each in all_found] == sorted(f"{file}: it is missing" for file in newest.values())
        assert {each.fault for each in all_found} == {Fault.DATA_UNREADABLE}
        assert all_found[0].ways[0] == "restore this file from a backup of any time since it was written"


def log_file(made: Warehouse, table: str, version: int) -> Path:
    return commit_file(made.stream.home / table, version)


LOGS = {
    ("batches", 1): "empty", ("operator_batches", 1): "cut", ("changes", 2): "missing",
    ("hop_by_id", 6): "another type", ("board", 3): "nested", ("partition_batches", 0): "no text",
    ("state_changes", 1): "without its end",
}  # fmt: skip
"""By table and version, what happens to the commit."""


def damage_log(made: Warehouse, table: str, version: int, way: str) -> Path:
    """Damages a commit, and returns its file."""
    file = log_file(made, table, version)
    content = file.read_bytes()
    damage({file: WAYS[way](content) if way in WAYS else content[: content.rindex(b"\n")]})
    return file


def test_people_are_told_of_damaged_logs_of_tables(made: Warehouse, tmp_path: Path) -> None:
    copied = copy(made, tmp_path / "w")
    files = [damage_log(copied, *place, way) for place, way in LOGS.items()]
    hint = copied.stream.home / "latency_minutes" / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version": 100, "size": 1}')
    found = {each.seen.partition(": ")[0]: each for each in findings(evidence(copied.stream))}
    assert {*found} == {*map(str, files), str(hint)}
    assert {each.fault for each in found.values()} == {Fault.TABLE_UNREADABLE}
    assert found[str(files[0])].ways[0].startswith("restore batches to its content when the stream last ended; ")
    assert found[str(hint)].ways == ("remove it while no driver runs: readers then look for the newest checkpoint",)
    reason = copied.start()
    assert reason.startswith("Unsound: ")
    for told in (reason, "\n".join(each.line for each in reasons(copied))):
        assert str(files[0]) in told
    ill = commands(tmp_path, copied)
    assert "events: unsound\n" in ill["doctor"].stdout
    for file in (*files, hint):
        assert f"table_unreadable: {file}: " in ill["doctor"].stdout
        assert f"no driver of events can start: {file}: " in ill["why"].stdout
    assert f"shop: unreadable: {files[0]}: it is empty; restore its table from a backup; " in ill["status"].stdout


@pytest.mark.parametrize("name", ["board", "changes_of_board", "hop_by_id", "batches", "operator_batches"])
@pytest.mark.parametrize("way", ["newest commit", "whole table"])
def test_people_are_told_of_a_lost_commit_that_leaves_a_sound_log(
    made: Warehouse, tmp_path: Path, name: str, way: str
) -> None:
    copied = copy(made, tmp_path / "w")
    table = copied.stream.home / name
    assert "file_unreadable" not in {each.cause for each in reasons(copied)}
    if way == "whole table":
        shutil.rmtree(table)
        lost = f"{table}: it no longer exists, but had rows of batch "
    else:
        # What only the newest decided batch wrote is written again, so these tables lose the commit before, too.
        lost_n = 2 if name in {"board", "changes_of_board", "hop_by_id"} else 1
        for commit in sorted((table / "_delta_log").glob("*.json"))[-lost_n:]:
            commit.unlink()
        lost = f"{table}: its newest batch was "
    assert damages(copied.control, copied.stream.home) == []
    (found,) = (each.seen for each in findings(evidence(copied.stream)))
    assert found.startswith(lost)
    assert found in copied.start()
    told = [each for each in reasons(copied) if each.cause == "file_unreadable"]
    assert [each.seen for each in told] == [f"no driver of events can start: {found}"]
    assert told[0].remedy.startswith("restore the control folder and the stream's tables from a backup of one instant")
    # While a driver writes, tables and journal change under the reader's eyes.
    lease = Control(copied.control)
    lease.acquire()
    lease.beat(Heartbeat(state=StreamState.RUNNING, epoch=9, launch_id="", at_ms=NOON + 10_000, pid=1))
    assert not [each for each in reasons(copied, at_ms=NOON + 10_000) if each.cause == "file_unreadable"]
    lease.release()


def reasons(copied: Warehouse, *, at_ms: int = NOON + 10**12) -> list[WhyFinding]:
    return why(copied.play.topology, Layout(copied.play.home), at_ms=at_ms, operator="board")


def commands(folder: Path, copied: Warehouse) -> dict[str, CommandOutput]:
    """Returns what commands say in a project with this one topology; none of them shows a traceback."""
    for name in ("topologies", "expectations"):
        (folder / name).mkdir()
    (folder / "expectations" / "slas.toml").touch()
    (folder / "topologies" / "shop.toml").write_text(copied.play.toml)
    said: dict[str, CommandOutput] = {}
    for line in ("doctor shop", "status shop", "why shop", "metrics text", "tables", "topology shop", "path shop"):
        ran = tidemark(folder, "--warehouse", str(copied.play.home), *line.split())
        assert "Traceback" not in ran.stderr, (line, ran.stderr)
        said[line.split()[0]] = ran
    return said


def test_pages_and_why_name_a_damaged_table_although_its_driver_runs(
    made: Warehouse, other: Warehouse, tmp_path: Path
) -> None:
    copied = copy(made, tmp_path / "w")
    lease = Control(copied.control)
    lease.acquire()
    assert isinstance(pages(copied), list)
    for name, way in (("batches", "cut"), ("partition_batches", "of another stream"), ("board", "cut")):
        newest = max((copied.stream.home / name / "_delta_log").glob("*.json"))
        foreign = (other.stream.home / name / "_delta_log" / newest.name).read_bytes()
        with damaged({newest: WAYS["cut"](newest.read_bytes()) if way == "cut" else foreign}):
            told = [each.line for each in reasons(copied, at_ms=NOON + 10_000) if each.cause == "file_unreadable"]
            shown, sick = pages(copied), doctor(copied.play.topology, Layout(copied.play.home), SUB)[SUB]
            with pytest.raises(InvalidArgument, match="syntax error"):
                SqlWarehouse(copied.play.home).ask(f"FROM {name} WHERE")
        # The log of another stream is whole, and names files that are not there.
        damage = f"{newest}: it is damaged" if way == "cut" else f"{newest.parent.parent}/"
        assert ("table_unreadable: " if way == "cut" else "data_unreadable: ") + damage in sick
        if name == "board":  # the results of a driver that runs: neither `why` nor a page reads their rows
            assert (told, isinstance(shown, list)) == ([], True)
            continue
        assert f"what is known of it cannot be read: {damage}" in told[0]
        assert isinstance(shown, str)
        assert shown.startswith(damage)
        assert "restore its table from a backup; " in shown
    lease.release()


def pages(copied: Warehouse, *, at_ms: int = NOON + 10_000) -> list[str] | str:
    """Returns the pages of the topology and of an operator, or the error that they show in their place."""
    home, topology = copied.play.home, copied.play.topology
    tables = SqlWarehouse(home, topology=topology.name)
    try:
        model = page_model(tables, Layout(home), topology, Promises(), at_ms=at_ms, operator="board")
        facts = topology_document(home, topology, at_ms=at_ms)
        past = history(tables, topology.name, ["board"], ChartSpan.HOUR, at_ms=at_ms, subjects=["board"])
        written = write_pages(tables, topology, Interval(NOON, NOON + 3_600_000), home / "page.html")
        return [
            topology_page(model, facts, topology),
            operator_page(model, facts, topology, "board", past, []),
            history_page(topology, past, at_ms=at_ms),
            sla_page(home, topology.name, model),
            start_page([model], folder=home),
            *(file.read_text() for file in written),
        ]
    except UnreadableFile as error:
        return str(error)


def test_people_are_told_of_damaged_files_and_commands_do_not_fail(made: Warehouse, tmp_path: Path) -> None:
    copied = copy(made, tmp_path / "w")
    home, control = copied.play.home, copied.control
    newest = control / "journal" / f"{BATCHES - 1:020d}.data.zip"
    needed = [newest, control / "loss.json", control / "meanings.json"]
    for path in (*needed, control / "heartbeat.json", control / "epoch"):
        path.write_bytes(b"{")
    reason = copied.start()
    assert reason.startswith("Unsound: checkpoint, journal and tables are inconsistent (tidemark doctor shop events):")
    # Also of a driver that was killed before it could say why.
    for text in (None, b"{"):
        if text is not None:
            (control / "heartbeat.json").write_bytes(text)
        told = sorted(finding.line for finding in reasons(copied) if finding.cause == "file_unreadable")
        assert [f" {path}: " in line for line, path in zip(told, needed, strict=True)] == [True] * 3
        assert "remove it, and ask for it again (accept-loss)" in told[1]
        assert "start the driver of events" in told[1]
    (home / "tidemark.json").write_bytes(b"{")
    assert copied.start().startswith(f"UnreadableFile: {home}/tidemark.json: a stamp has the keys")
    ill = commands(tmp_path, copied)
    assert ill["doctor"].returncode == 1
    assert "events: unsound\n" in ill["doctor"].stdout
    for path in (*needed, home / "tidemark.json"):
        assert f"_unreadable: {path}: " in ill["doctor"].stdout
    assert {name: ran.returncode for name, ran in ill.items() if name not in {"doctor", "path"}} == dict.fromkeys(
        ("status", "why", "metrics", "tables", "topology"), 0
    )
    shown = pages(copied, at_ms=NOON + 10**12)
    assert isinstance(shown, list)
    assert f"no driver of events can start: {newest}: " in shown[0]


@pytest.mark.parametrize("seed", range(RANDOM_CASES))
def test_a_random_damage_is_found_or_changes_nothing(
    made: Warehouse, undamaged: list[tuple[Any, ...]], tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    copied = copy(made, tmp_path / "w")
    _, path = random.choice([*files(copied)])
    content = path.read_bytes()
    at = random.randrange(max(1, len(content)))
    damages_of_it = [
        lambda: content[:at],
        lambda: flipped(content, at, random.randrange(8)),
        lambda: content[:at] + random.randbytes(random.randrange(1, 9)) + content[at:],
        lambda: content[at:],
        lambda: random.choice([each for _, each in files(copied)]).read_bytes(),
        lambda: random.randbytes(len(content)),
    ]
    path.write_bytes(random.choice(damages_of_it)())
    found = findings(evidence(copied.stream))
    why(copied.play.topology, Layout(copied.play.home), at_ms=NOON + 10**6)
    reason = copied.start()
    if found:
        assert all(each.ways for each in found)
        assert "Started" not in reason
    else:
        assert "Started" in reason
        assert copied.go_on() == undamaged
