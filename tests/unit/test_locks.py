"""Private folders and locks, on which no process waits forever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidemark.control.folder import AlreadyRunning, Control
from tidemark.model.project.layout import Layout
from tidemark.model.slas.channel_spec import Channel
from tidemark.sla.incidents import tables as incident_tables
from tidemark.storage.locks import ForeignOwner, LockHeld, locked, open_lock, own_folder

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)


@contextmanager
def held_elsewhere(file: Path) -> Iterator[int]:
    """Another process that holds the lock *file*; its pid."""
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_folder_and_its_locks_are_their_owners_alone(tmp_path: Path) -> None:
    home = tmp_path / "control"
    assert Control(home).acquire() == 1
    assert (mode(home), mode(home / "driver.lock"), mode(home / "acquire.lock")) == (0o700, 0o600, 0o600)


def test_other_modes_are_repaired(tmp_path: Path) -> None:
    home = tmp_path / "control"
    home.mkdir()
    home.chmod(0o775)
    (home / "driver.lock").touch()
    (home / "driver.lock").chmod(0o644)
    Control(home).acquire()
    assert (mode(home), mode(home / "driver.lock")) == (0o700, 0o600)


def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").touch()
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 54_321)
    with pytest.raises(ForeignOwner, match=r"belongs to \w+, but Tidemark runs as uid \d+"):
        own_folder(tmp_path)
    with pytest.raises(ForeignOwner, match=r"lock belongs to .*chown"):
        open_lock(tmp_path / "lock")


def test_a_lock_is_waited_for_so_long_and_its_holder_named(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "lock") as pid:  # noqa: SIM117
        with pytest.raises(LockHeld, match=rf"locked by another process \(pid {pid} on .*for more than 0.2 s; wait"):
            with locked(tmp_path / "lock", within_s=0.2):
                pytest.fail("two have it")
    with locked(tmp_path / "lock", within_s=0.2), pytest.raises(LockHeld, match=rf"pid {os.getpid()} on"):  # noqa: SIM117
        with locked(tmp_path / "lock", within_s=0):
            pytest.fail("two have it")


def test_a_second_driver_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "driver.lock") as pid, pytest.raises(AlreadyRunning, match=rf"pid {pid} on"):
        Control(tmp_path).acquire()


def test_a_channel_that_is_locked_is_an_error_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_tables, "AT_MOST_S", 0.2)
    layout, desk = Layout(tmp_path), Channel(name="desk", notifier="x", arguments={})
    home = layout.report_control("flights")
    own_folder(home)
    with held_elsewhere(home / "desk.lock") as pid, pytest.raises(LockHeld, match=rf"desk.lock: .*pid {pid} on"):  # noqa: SIM117
        with incident_tables.channel_lock(layout, "flights", desk):
            pytest.fail("two tell it")
