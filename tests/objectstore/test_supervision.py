"""Drivers, here stand-ins, are supervised through a control folder in a store."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.driver_folder import processes_of
from tidemark.control.folder import Control, StreamState, digest
from tidemark.errors import TidemarkError
from tidemark.semantics.liveness import RightToKill
from tidemark_airflow.operators.driver import NAME, Driver, DriverVerdict, Launch

PROJECT = Path(__file__).resolve().parents[2]
STAND_IN = PROJECT / "tests" / "airflow" / "stand_in.py"
FLIGHTS = PROJECT / "jobs" / "topologies" / "flights.toml"
SECRET = "secret-of-a-broker"
RIGHT_TO_KILL = RightToKill(silent_s=1.0, starting_s=20.0, working_s=20.0, draining_s=3.0)


@pytest.fixture
def driver(warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    control = warehouse / "control" / "flights"
    found = Driver(control / "status", RIGHT_TO_KILL, shared=control / ".driver")
    yield found
    process.stop(found.process_home, NAME, grace_s=0)


def launch(driver: Driver, **more: object) -> Launch:
    """Launches the stand-in, or adopts the one that runs."""
    launch_id = uuid.uuid4().hex
    given = ["--warehouse", str(driver.home.parents[2]), "--topology", str(FLIGHTS), "--sub-topology", "status"]
    return driver.ensure(
        [sys.executable, str(STAND_IN)],
        dict(os.environ),
        launch_id,
        arguments=[*given, "--bootstrap", "127.0.0.1:1", "--launch-id", launch_id],
        now_ms=wall_clock_ms(),
        digest=digest(FLIGHTS),
        **more,  # type: ignore[arg-type]
    )


def running(driver: Driver) -> int:
    """Waits for the newest launch's heartbeat and returns its pid."""

    def beats() -> bool:
        beat = driver.heartbeat()
        return beat is not None and beat.state is StreamState.RUNNING

    process.wait_until(beats, "a running driver", 20)
    beat = driver.heartbeat()
    assert beat is not None
    return beat.pid


def verdict(driver: Driver) -> DriverVerdict:
    return driver.verdict(now_ms=wall_clock_ms())


def test_files_of_processes_are_on_the_host_alone(driver: Driver, tmp_path: Path) -> None:
    launch(driver)
    running(driver)
    names = {path.name for path in driver.home.parents[1].rglob("*")}
    assert {"launch.json", "heartbeat.json"} <= names
    assert not names & {"driver.log", "driver.pid.json", "launch.lock", "asking.lock", "running.json", "command.txt"}
    here = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {"driver.log", "driver.pid.json", "launch.lock", "asking.lock"} <= here


def test_a_living_driver_is_adopted_and_then_drained(driver: Driver) -> None:
    first = launch(driver)
    pid = running(driver)
    assert launch(driver) == first
    assert running(driver) == pid
    driver.control.request_drain(by="ann", now_ms=wall_clock_ms())
    process.wait_until(lambda: verdict(driver) is DriverVerdict.DRAINED, "the drain", 40)
    assert driver.unreported_drain() == "ann"
    driver.report_drain()
    assert driver.unreported_drain() is None


def test_a_killed_driver_is_dead_at_once_and_replaced(driver: Driver) -> None:
    launch(driver)
    killed = running(driver)
    os.kill(killed, signal.SIGKILL)
    # Its last sign of life is so young that a driver elsewhere would count as alive for another minute.
    process.wait_until(lambda: verdict(driver) is DriverVerdict.DEAD, "a dead driver", 5)
    launch(driver)
    assert running(driver) != killed
    assert driver.control.epoch() == 2


def test_a_driver_elsewhere_is_known_by_its_heartbeats(driver: Driver) -> None:
    launch(driver)
    os.kill(running(driver), signal.SIGKILL)
    elsewhere = Driver(driver.home, RIGHT_TO_KILL, host="another-host", shared=driver.shared)
    assert verdict(elsewhere) is DriverVerdict.ALIVE
    assert elsewhere.verdict(now_ms=wall_clock_ms() + 61_000) is DriverVerdict.STALE


def test_a_driver_is_stopped_for_its_launch_alone(driver: Driver) -> None:
    started = launch(driver)
    running(driver)
    driver.stop("of an older try", by="ann", now_ms=wall_clock_ms())
    assert verdict(driver) is DriverVerdict.ALIVE
    driver.stop(started.launch_id, by="ann", now_ms=wall_clock_ms())
    assert not driver.control.is_held()


def test_a_driver_killed_for_its_task_leaves_no_lease(driver: Driver) -> None:
    driver.home.mkdir(parents=True)
    (driver.home / "behaviour").write_text("ignore drain")
    ignoring = launch(driver)
    killed = running(driver)
    driver.stop(ignoring.launch_id, by="ann", now_ms=wall_clock_ms())
    assert not process.exists(killed)
    # Without this the next launch, or a driver elsewhere, would wait until it has been silent for a minute.
    assert not Control(driver.home).is_held()


def test_secrets_of_brokers_stay_on_the_host(driver: Driver) -> None:
    started = launch(driver, secrets=lambda: {"eu.password": SECRET})
    running(driver)
    assert (processes_of(driver.home) / f"secrets_{started.launch_id}.json").stat().st_mode & 0o777 == 0o600
    kept = [path.read_bytes() for path in driver.home.parents[1].rglob("*")]
    assert kept
    assert not any(SECRET.encode() in content for content in kept)


def test_secrets_are_refused_for_a_driver_elsewhere(driver: Driver) -> None:
    with pytest.raises(TidemarkError, match=r"kafka\.eu\.password: a driver in cluster mode") as refused:
        launch(driver, secrets=lambda: {"eu.password": SECRET}, is_remote=True)
    assert SECRET not in str(refused.value)
    assert driver.launch() is None
