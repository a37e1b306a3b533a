"""Work that several processes request at once is done once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident

import pytest

from tidemark.control.shared_work import WORK, WorkFailed, share

PATIENCE_S = 60


@dataclass(frozen=True)
class Noting:
    """Notes which process did the work in *home*.

    It waits before for *others* that request something too.
    """

    home: Path
    name: str
    others: int = 0
    fails: bool = False

    def __call__(self) -> None:
        (self.home / f"{self.name}.begun").touch()
        deadline = time.monotonic() + PATIENCE_S
        while len([*(self.home / "folder").glob(f"*{WORK}")]) < self.others and time.monotonic() < deadline:
            time.sleep(0.01)
        with (self.home / self.name).open("a") as file:
            file.write(f"{get_ident()}\n")
        if self.fails:
            msg = f"{self.name} cannot be done"
            raise ValueError(msg)


def begun(home, name):
    deadline = time.monotonic() + PATIENCE_S
    while not (home / f"{name}.begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def done_by(home):
    return {file.name: file.read_text().split() for file in home.iterdir() if file.is_file() and not file.suffix}


def test_who_works_does_what_waits_and_each_fails_by_itself(tmp_path):
    folder = tmp_path / "folder"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(share, Noting(tmp_path, "first", others=2), folder)
        begun(tmp_path, "first")
        second = pool.submit(share, Noting(tmp_path, "second"), folder)
        broken = pool.submit(share, Noting(tmp_path, "broken", fails=True), folder)
        assert (first.result(), second.result()) == (None, None)
        with pytest.raises(WorkFailed, match="broken cannot be done"):
            broken.result()
    found = done_by(tmp_path)
    assert found["first"] == found["second"] == found["broken"]
    assert len(found["first"]) == 1
    assert [file.name for file in folder.iterdir()] == ["lock"]


def test_who_works_fails_after_the_work_of_others(tmp_path):
    folder = tmp_path / "folder"
    with ThreadPoolExecutor() as pool:
        broken = pool.submit(share, Noting(tmp_path, "broken", others=1, fails=True), folder)
        begun(tmp_path, "broken")
        other = pool.submit(share, Noting(tmp_path, "other"), folder)
        with pytest.raises(ValueError, match="broken cannot be done"):
            broken.result()
        assert other.result() is None
    assert done_by(tmp_path)["other"] == done_by(tmp_path)["broken"]


def test_work_of_a_process_that_ended_or_cannot_be_read_is_left(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (folder / f"{pid}-x{WORK}").write_bytes(b"of another version")

    share(Noting(tmp_path, "own"), folder)

    assert len(done_by(tmp_path)["own"]) == 1
    assert [file.name for file in folder.iterdir()] == ["lock"]


def test_who_waits_too_long_does_its_work_itself(tmp_path):
    folder = tmp_path / "folder"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(share, Noting(tmp_path, "first", others=2), folder)
        begun(tmp_path, "first")
        share(Noting(tmp_path, "second"), folder, patience_s=0)
        for name in "xy":
            (folder / f"{os.getpid()}-{name}{WORK}").write_bytes(b"that it may end")
        first.result()
    assert len(done_by(tmp_path)["second"]) == 1


def test_a_folder_that_another_user_may_have_made_is_not_used(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")

    share(Noting(tmp_path, "own"), tmp_path / "folder")

    assert len(done_by(tmp_path)["own"]) == 1
    assert [*(tmp_path / "elsewhere").iterdir()] == []
