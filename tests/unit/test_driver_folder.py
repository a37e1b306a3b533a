"""Drivers wait for requests cheaply; their files are on their host."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tidemark.control.driver_folder import DriverFolder, StartRequest, processes_of
from tidemark.storage.location import location

MINUTE_MS = 60_000
FREE_AFTER = 3
"""Looks for requests until the disk has room again."""


def test_a_waiting_minute_is_120_looks_and_six_writes(tmp_path: Path) -> None:
    now_ms, looks, written_ms, is_over = [0], [0], set(), threading.Event()

    def sleep(seconds: float) -> None:
        looks[0] += 1
        written_ms.add(DriverFolder(tmp_path).running().at_ms)
        now_ms[0] += round(seconds * 1_000)
        if now_ms[0] == MINUTE_MS:
            counted.append(looks[0])
            is_over.set()

    counted: list[int] = []
    folder = DriverFolder(tmp_path, clock=lambda: now_ms[0], sleep_s=sleep)
    folder.ask(StartRequest("launch", str(tmp_path / "control"), ()))
    assert folder.drive(lambda _: 0 if is_over.wait() else 1) == 0
    assert counted == [120]
    assert sorted(at_ms for at_ms in written_ms if at_ms < MINUTE_MS) == [0, 10_000, 20_000, 30_000, 40_000, 50_000]


def test_a_launch_begins_only_after_it_is_listed(tmp_path: Path) -> None:
    polls, listed = [0], []
    folder = DriverFolder(tmp_path)
    folder.ask(StartRequest("launch", "control", ()))
    # A folder in its place refuses the file, as a full disk does.
    (tmp_path / "running.json").mkdir()

    def run(_: Sequence[str]) -> int:
        listed.append(folder.running().launches)
        return 0

    def sleep(_: float) -> None:
        polls[0] += 1
        if polls[0] == FREE_AFTER:
            assert [path.name for path in tmp_path.glob("start_*")] == ["start_launch.json"]
            (tmp_path / "running.json").rmdir()

    assert DriverFolder(tmp_path, clock=lambda: 0, sleep_s=sleep).drive(run) == 0
    assert listed == [{"launch": "control"}]


def test_processes_of_a_warehouse_on_disk_are_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
    assert processes_of(tmp_path) == tmp_path


@pytest.mark.parametrize(("home", "root"), [("/srv/airflow", "/srv/airflow"), ("", "/home/ann/airflow")])
def test_processes_for_an_object_store_are_in_airflows_home(
    monkeypatch: pytest.MonkeyPatch, home: str, root: str
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", home)
    monkeypatch.setenv("HOME", "/home/ann")
    folder = processes_of(location("s3://bucket/wh/control/flights/.driver"))
    assert folder == Path(f"{root}/tidemark/processes/bucket/wh/control/flights/.driver")
    assert DriverFolder(folder / "host").name == "flights"
