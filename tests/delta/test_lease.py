"""A driver without its lease writes nothing more, at any step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from support.play import Play
from support.topologies import NEWEST_SENT
from tidemark.control.folder import Control, Heartbeat, LeaseLost, StreamState
from tidemark.control.process import wait_until
from tidemark.errors import Contradiction
from tidemark.model.project.layout import Layout
from tidemark.semantics.liveness import SILENT_AFTER_MS
from tidemark.storage.delta.tables import Committer, create, scan
from tidemark.storage.fence import Fence

SUB = "events"
T = 1_400_000_000_000


def play_batch(play: Play, number: int) -> None:
    """Batch *number*: two keys, the values of which are the batch."""
    rows = [play.row("events", T + 1_000 * number + n, id=id_, v=number) for n, id_ in enumerate("ab")]
    play.batch(rows, at_ms=T + 1_000 * number)


def drive(play: Play, **hooks: object) -> Control:
    """Gives the lease, even of a silent driver, to *play*'s driver.

    It has sent one heartbeat, at 0.
    """
    control = Control(Layout(play.home).control("play", SUB))
    epoch = control.acquire(take_over_at_ms=SILENT_AFTER_MS)
    control.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="", at_ms=0, pid=1))
    play.start(SUB, epoch=epoch, check_lease=partial(control.check_lease, epoch), **hooks)  # type: ignore[arg-type]
    return control


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    play = Play(NEWEST_SENT, tmp_path_factory.mktemp("undisturbed"))
    for number in range(3):
        play_batch(play, number)
    return play.tables()


@pytest.mark.parametrize(
    "step",
    [
        "decided",
        pytest.param("committed changes", marks=pytest.mark.long),
        "committed changes_of_board",
        pytest.param("committed out", marks=pytest.mark.long),
        "committed board",
        pytest.param("measured", marks=pytest.mark.long),
        "committed operator_batches",
    ],
)
def test_a_driver_replaced_between_two_commits_makes_no_second(
    tmp_path: Path, undisturbed: dict[str, list[str]], step: str
) -> None:
    older, controls = Play(NEWEST_SENT, tmp_path), []
    newer: list[Play] = []

    def reached(name: str) -> None:
        if name == step and not newer and older.now_ms == T + 1_000:
            # What the older driver sees as one instant is long enough for another to take over and go on.
            newer.append(older.copy(tmp_path))
            controls.append(drive(newer[0]))
            newer[0]._offsets.update({("events", 0): 2})
            for number in (1, 2):
                play_batch(newer[0], number)

    controls.append(drive(older, reached=reached))
    play_batch(older, 0)
    with pytest.raises(LeaseLost, match="taken over this stream with epoch 2; this driver, with epoch 1"):
        play_batch(older, 1)
    assert older.tables() == undisturbed
    sent_before = step not in {"decided", "committed changes", "committed changes_of_board"}
    assert len(older.broker.published) == (4 if sent_before else 2)


def test_a_driver_replaced_between_batches_decides_no_next_one(
    tmp_path: Path, undisturbed: dict[str, list[str]]
) -> None:
    older = Play(NEWEST_SENT, tmp_path)
    held = [drive(older)]
    play_batch(older, 0)
    newer = older.copy(tmp_path)
    held.append(drive(newer))
    journal = held[0].home / "journal"
    before = sorted(journal.iterdir())
    with pytest.raises(LeaseLost, match="another driver has taken over this stream"):
        play_batch(older, 1)
    assert sorted(journal.iterdir()) == before
    for number in (1, 2):
        play_batch(newer, number)
    assert older.tables() == undisturbed


@pytest.mark.parametrize("is_current", [False, True])
@pytest.mark.parametrize("later", [[0], [0, 1]])
def test_a_driver_paused_between_check_and_write_writes_nothing(
    tmp_path: Path, *, is_current: bool, later: list[int]
) -> None:
    table = tmp_path / "board"
    create(table, pa.schema([("id", pa.string()), ("batch_id", pa.int64())]))

    def commit(committer: Committer, batch_id: int) -> None:
        rows = pa.table({"id": ["a"], "batch_id": [batch_id]})
        if is_current:
            deleted = pa.array([False])
            committer.upsert(table, rows.append_column("deleted", deleted), batch_id, key=["id"])
        else:
            committer.commit(table, rows, batch_id)

    def taken_over() -> None:
        newer = Committer("play/0", Fence(clock=lambda: 0))
        for batch_id in later:
            commit(newer, batch_id)

    with pytest.raises(Contradiction, match="another driver committed batch 0"):
        commit(Committer("play/0", Fence(taken_over, clock=lambda: 0)), 0)
    rows = scan(table).collect().sort("batch_id")["batch_id"].to_list()
    assert rows == (later[-1:] if is_current else later)


DRIVER = """
import sys, time
from functools import partial
from pathlib import Path
import pyarrow as pa
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.storage.delta.tables import Committer
from tidemark.storage.fence import Fence
home = Path(sys.argv[1])
control = Control(home / "control")
epoch = control.acquire()
control.beat(Heartbeat(state=StreamState.RUNNING, epoch=epoch, launch_id="", at_ms=0, pid=1))
committer = Committer("t/s", Fence(partial(control.check_lease, epoch), clock=lambda: 0))
for batch_id in range(10_000):
    committer.commit(home / "changes", pa.table({"batch_id": [batch_id], "epoch": [epoch]}), batch_id)
    time.sleep(0.02)
"""


def test_a_process_that_resumes_after_a_takeover_commits_nothing(tmp_path: Path) -> None:
    table = tmp_path / "changes"
    create(table, pa.schema([("batch_id", pa.int64()), ("epoch", pa.int64())]))
    older = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: scan(table).collect().height > 2, "some commits", 60)
        os.kill(older.pid, signal.SIGSTOP)
        control = Control(tmp_path / "control")
        assert control.acquire(take_over_at_ms=SILENT_AFTER_MS) == 2
        committed = scan(table).collect().height - 1
        os.kill(older.pid, signal.SIGCONT)
        _, error = older.communicate(timeout=30)
    finally:
        older.kill()
    assert older.returncode == 1
    assert "LeaseLost" in error, error
    last = scan(table).collect().height - 1
    assert last in {committed, committed + 1}  # it had been stopped in the middle of a commit
    newer = Committer("t/s", Fence(partial(control.check_lease, 2), clock=lambda: 0))
    newer.commit(table, pa.table({"batch_id": [last + 1], "epoch": [2]}), last + 1)
    assert scan(table).collect().sort("batch_id").rows() == [
        *((number, 1) for number in range(last + 1)),
        (last + 1, 2),
    ]
