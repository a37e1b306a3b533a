"""A full disk at any step loses and doubles nothing.

The driver continues when there is space.

The disk is a small one in memory, really full; where this user may not mount one, these tests are skipped.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.crashes import Crash
from support.play import Play
from support.small_disk import SmallDisk, small_disk
from support.topologies import NEWEST_SENT
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.disk import Disk, Work, past_trouble, trouble_of_driver_before
from tidemark.storage.fence import Fence

T = 1_400_000_000_000
SUB = "events"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small", megabytes=4) as disk:
        yield disk


def play_batch(play: Play, number: int) -> None:
    """Runs batch *number* with two keys whose values are the batch.

    When it is run again, nothing changes.
    """
    rows = [play.row("events", T + 1_000 * number + n, id=id_, v=number // 2) for n, id_ in enumerate("ab")]
    play.batch(rows, at_ms=T + 1_000 * number)


def unused_files(home: Path) -> list[Path]:
    """Returns uncommitted data files and unfinished files elsewhere."""
    found = [path for path in home.rglob("*") if path.suffix == ".partial" or "#" in path.name]
    for log in home.rglob("_delta_log"):
        actions = [json.loads(line) for commit in log.glob("*.json") for line in commit.read_text().splitlines()]
        added = {action["add"]["path"] for action in actions if "add" in action}
        found += [file for file in log.parent.glob("*.parquet") if file.name not in added]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Play:
    play = Play(NEWEST_SENT, tmp_path_factory.mktemp("undisturbed"))
    for number in range(4):
        play_batch(play, number)
    return play


def start(play: Play, **hooks: Any) -> Disk:
    """Starts a driver of *play* that waits by calling *sleep_s*.

    It calls *check* before each second of waiting.
    """
    waiting = Disk(hooks.pop("check", lambda: None), sleep_s=hooks.pop("sleep_s"), clock=lambda: 0)
    play.start(SUB, until_written=waiting.until_written, **hooks)
    return waiting


@pytest.mark.parametrize(
    ("step", "but_pages"),
    [
        ("before", 0),
        pytest.param("before", 2, marks=pytest.mark.long),
        pytest.param("decided", 0, marks=pytest.mark.long),
        ("decided", 2),  # enough for the data of a commit, and not for its log
        pytest.param("committed changes", 2, marks=pytest.mark.long),
        ("committed board", 0),
        pytest.param("committed out", 0, marks=pytest.mark.long),
        ("measured", 2),
        pytest.param("committed operator_batches", 0, marks=pytest.mark.long),
    ],
)
def test_a_batch_waits_for_disk_space_and_is_written_once(
    disk: SmallDisk, undisturbed: Play, step: str, but_pages: int
) -> None:
    play, waited = Play(NEWEST_SENT, disk.home), []

    def reached(name: str) -> None:
        if name == step and play.now_ms == T + 2_000:
            disk.fill(but_pages=but_pages)

    def sleep_s(seconds: float) -> None:
        waited.append((seconds, waiting.trouble))
        if len(waited) == 3:
            disk.free()

    waiting = start(play, reached=reached, sleep_s=sleep_s)
    for number in range(4):
        if step == "before" and number == 2:
            disk.fill(but_pages=but_pages)
        play_batch(play, number)
    assert waited == [(1, "cannot write: No space left on device, since 1970-01-01T00:00:00.000Z")] * 3
    assert waiting.trouble is None
    assert play.tables() == undisturbed.tables()
    assert len(play.broker.published) == 4
    assert unused_files(disk.home) == []


@pytest.mark.parametrize(
    "step",
    [*(pytest.param(step, marks=pytest.mark.long) for step in ("before", "measured")), "decided", "committed changes"],
)
def test_a_driver_drained_on_a_full_disk_leaves_its_batch(disk: SmallDisk, undisturbed: Play, step: str) -> None:
    play = Play(NEWEST_SENT, disk.home)

    def reached(name: str) -> None:
        if name == step and play.now_ms == T + 2_000:
            disk.fill()

    def drained() -> None:
        raise Crash

    start(play, check=drained, sleep_s=lambda _: None, reached=reached)
    play_batch(play, 0)
    play_batch(play, 1)
    if step == "before":
        disk.fill()
    before = play.copy(disk.home)
    with pytest.raises(Crash):
        play_batch(play, 2)
    disk.free()
    for number in (2, 3):
        play_batch(before, number)
    assert play.tables() == undisturbed.tables()
    assert unused_files(disk.home) == []


def test_a_commit_without_space_for_a_checkpoint_is_kept_once(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.storage.delta.log.CHECKPOINT_EVERY", 2)
    table, waited = disk.home / "changes", []
    create(table, pa.schema([("batch_id", pa.int64())]))

    def sleep_s(_: float) -> None:
        waited.append(scan(table).collect().height)
        disk.free()

    committer = Committer(
        "play/0", Fence(until_written=Disk(lambda: None, sleep_s=sleep_s).until_written, clock=lambda: 0)
    )
    for batch_id in range(4):
        if batch_id == 2:
            disk.fill(but_pages=3)  # of which rows and log take two
        committer.commit(table, pa.table({"batch_id": [batch_id]}), batch_id)
    assert waited == [3]
    assert sorted(scan(table).collect()["batch_id"]) == [0, 1, 2, 3]
    assert unused_files(disk.home) == []


def test_the_pauses_between_two_tries_grow_to_half_a_minute() -> None:
    waited: list[float] = []
    tried_at_s: list[float] = []

    def read_only_at_first() -> str:
        tried_at_s.append(sum(waited))
        if len(tried_at_s) < 8:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return "written"

    assert Disk(lambda: None, sleep_s=waited.append).until_written(read_only_at_first) == "written"
    assert tried_at_s == [0, 1, 3, 7, 15, 31, 61, 91]


def test_an_error_unrelated_to_the_disk_is_not_retried() -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(PermissionError):
        Disk(lambda: None, sleep_s=lambda _: None).until_written(refused)


def test_a_heartbeat_on_a_full_disk_reports_the_full_disk(disk: SmallDisk) -> None:
    control = Control(disk.home / "control")
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=1, pid=1, offsets={"events/0": 9})
    control.beat(beat)
    disk.fill()
    waiting = replace(beat, at_ms=2, reason="cannot write: No space left on device")
    control.beat(waiting)
    assert control.heartbeat() == waiting
    assert [path.name for path in control.home.iterdir()] == ["heartbeat.json"]


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


FROM_1_TO_2 = "could not write from 1970-01-01T00:00:01.000Z until 1970-01-01T00:00:02.000Z: No space left on device"


@pytest.mark.parametrize(("waits", "other"), [(Work.BATCH, Work.FLUSH), (Work.FLUSH, Work.BATCH)])
def test_what_happened_to_the_disk_is_told_until_the_work_that_waited_is_done(waits: Work, other: Work) -> None:
    now_ms, tries, told = [1_000], [no_space, no_space, lambda: None], list[tuple[str | None, str | None]]()
    disk = Disk(lambda: None, sleep_s=lambda _: told.append((disk.trouble, disk.past)), clock=lambda: now_ms[0])

    def write() -> None:
        now_ms[0] = 2_000 if len(tries) == 1 else 1_000
        tries.pop(0)()

    with disk.work(waits):
        disk.until_written(write)
        told.append((disk.trouble, disk.past))
        with ThreadPoolExecutor(1) as another_thread:
            assert another_thread.submit(_does, disk, other).result()
        told.append((disk.trouble, disk.past))
    told.append((disk.trouble, disk.past))
    cannot = "cannot write: No space left on device, since 1970-01-01T00:00:01.000Z"
    assert told == [*[(cannot, None)] * 3, *[(None, FROM_1_TO_2)] * 2, (None, None)]


def _does(disk: Disk, work: Work) -> bool:
    with disk.work(work):
        return True


def test_work_that_fails_after_the_disk_was_full_still_waits() -> None:
    disk = Disk(lambda: None, past=FROM_1_TO_2)
    with pytest.raises(Crash), disk.work(Work.BATCH):
        raise Crash
    assert _does(disk, Work.FLUSH)
    assert disk.past == FROM_1_TO_2
    assert _does(disk, Work.BATCH)
    assert disk.past is None


@pytest.mark.parametrize(
    ("reason", "past", "told"),
    [
        (None, None, None),
        ("waits for Kafka: no answer of a:1 (cluster b) since 1970-01-01T00:00:01.000Z", None, None),
        (
            "cannot write: No space left on device, since 1970-01-01T00:00:01.000Z", FROM_1_TO_2,
            f"a driver before this one {FROM_1_TO_2}",
        ),
        (FROM_1_TO_2, FROM_1_TO_2, f"a driver before this one {FROM_1_TO_2}"),
        (f"a driver before this one {FROM_1_TO_2}",) * 3,
        (
            "OSError: [Errno 30] Read-only file system: 'epoch'",
            "could not write from 1970-01-01T00:00:02.000Z until 1970-01-01T00:00:02.000Z: Read-only file system",
            "a driver before this one could not write from 1970-01-01T00:00:02.000Z until 1970-01-01T00:00:02.000Z: "
            "Read-only file system",
        ),
    ],
)  # fmt: skip
def test_the_next_driver_tells_of_the_disk_of_the_driver_before(
    reason: str | None, past: str | None, told: str | None
) -> None:
    assert past_trouble(reason, 2_000) == past
    assert trouble_of_driver_before(reason, 2_000) == told
