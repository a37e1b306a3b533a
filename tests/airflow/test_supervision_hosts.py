"""Drivers elsewhere are judged by heartbeat, drained, and taken over when silent.

There are never two.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tidemark.clock import wall_clock_ms
from tidemark.control import cluster_manager, process
from tidemark.control.folder import AlreadyRunning, Control, Heartbeat, StreamState
from tidemark.errors import TidemarkError
from tidemark.semantics.liveness import RightToKill
from tidemark.storage.location import location
from tidemark_airflow.operators.driver import NAME, Driver, DriverVerdict

RIGHT_TO_KILL = RightToKill(silent_s=5.0, starting_s=60.0, draining_s=0.3)
ELSEWHERE = "other-host"
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
NOTHING = (sys.executable, "-c", "pass")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    process.stop(tmp_path, NAME, grace_s=0)


def here(home: Path) -> Driver:
    return Driver(home, RIGHT_TO_KILL)


def beat(home: Path, launch_id: str, *, age_ms: int = 0, state: StreamState = StreamState.RUNNING) -> None:
    """Writes a heartbeat of a driver elsewhere, *age_ms* ago."""
    sent = Heartbeat(
        state=state, epoch=1, launch_id=launch_id, at_ms=wall_clock_ms() - age_ms, pid=1, host=ELSEWHERE, digest="d"
    )
    Control(home).beat(sent)


def ensure(driver: Driver, launch_id: str, command: tuple[str, ...] = SLEEP, **how: bool) -> str:
    return driver.ensure(command, {}, launch_id, now_ms=wall_clock_ms(), digest="d", **how).launch_id


def verdict(home: Path, *, in_ms: int = 0) -> DriverVerdict:
    return here(home).verdict(now_ms=wall_clock_ms() + in_ms)


def test_in_cluster_mode_the_submitting_process_may_end(home: Path) -> None:
    ensure(here(home), "l1", NOTHING, is_remote=True)
    process.wait_until(lambda: process.find(home, NAME) is None, "the end of spark-submit", 10)
    assert verdict(home) is DriverVerdict.ALIVE
    assert ensure(here(home), "l2", is_remote=True) == "l1"
    assert verdict(home, in_ms=61_000) is DriverVerdict.STALE


def test_in_client_mode_it_may_not(home: Path) -> None:
    ensure(here(home), "l1", NOTHING)
    process.wait_until(lambda: process.find(home, NAME) is None, "the end of spark-submit", 10)
    assert verdict(home) is DriverVerdict.DEAD


def test_a_driver_elsewhere_lives_as_long_as_it_beats(home: Path) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1")
    process.stop(home, NAME, grace_s=0)  # from here it could not be seen either
    assert verdict(home) is DriverVerdict.ALIVE
    beat(home, "l1")
    assert verdict(home) is DriverVerdict.ALIVE
    assert ensure(here(home), "l2") == "l1"
    beat(home, "l1", age_ms=5_100)
    assert verdict(home) is DriverVerdict.STALE


def test_a_driver_in_an_object_store_may_miss_two_beats() -> None:
    # one that writes to an object store beats every 20 s, so 60 s are the least after which it is stale
    place = location("s3a://bucket/warehouse/control/play/events")
    quick, patient = Driver(place, RIGHT_TO_KILL), Driver(place, RightToKill(silent_s=90.0))
    assert (quick._right_to_kill.silent_s, patient._right_to_kill.silent_s) == (60.0, 90.0)


@pytest.mark.parametrize("state", [StreamState.DRAINED, StreamState.ROTATED, StreamState.FAILED])
def test_a_driver_elsewhere_has_ended_when_it_says_so(home: Path, state: StreamState) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1")
    beat(home, "l1", state=state, age_ms=60_000)
    assert verdict(home).value == state.value


def test_an_undrained_driver_elsewhere_is_not_reported_gone(home: Path) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", is_remote=True)
    beat(home, "l1")
    with pytest.raises(TidemarkError, match=r"on other-host.*kubectl delete pod"):
        here(home).stop("l1", by="ann", now_ms=wall_clock_ms())
    assert Control(home).drain_requested()
    assert process.find(home, NAME) is not None  # what a pid means elsewhere is not known here


def test_a_silent_driver_elsewhere_is_taken_over(home: Path) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", is_remote=True)
    process.stop(home, NAME, grace_s=0)
    beat(home, "l1", age_ms=5_100)
    here(home).kill("l1")
    assert ensure(here(home), "l2") == "l2"
    started = process.find(home, NAME)
    assert started is not None
    asked = json.loads((home / "start_l2.json").read_text())
    assert asked["arguments"] == ["--take-over", "--silent-after", "5"]


@dataclass(frozen=True)
class Programs:
    """Stand-ins for PySpark's programs, with one *answer*."""

    folder: Path

    def answer(self, text: str) -> None:
        (self.folder / "answer").write_text(text)

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Programs:
    folder = tmp_path_factory.mktemp("programs")
    for name in ("spark-class", "spark-submit"):
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/asked\ncat {folder}/answer\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cluster_manager, "KILLED_WITHIN_S", 0.0)
    return Programs(folder)


YARNS = "spark-class org.apache.hadoop.yarn.client.cli.ApplicationCLI application"
ON_YARN = cluster_manager.ManagedDriver("l1", cluster_manager.ClusterManager.YARN, "application_17_0042")
POD = cluster_manager.ManagedDriver("l1", cluster_manager.ClusterManager.KUBERNETES, "streams:numbers-driver")


def test_a_silent_driver_is_killed_through_its_manager(home: Path, programs: Programs) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", is_remote=True)
    process.stop(home, NAME, grace_s=0)
    cluster_manager.record(home, ON_YARN)
    beat(home, "l1", age_ms=5_100)
    programs.answer("Application Report :\n\tState : KILLED\n\tFinal-State : KILLED\n")
    assert verdict(home) is DriverVerdict.STALE
    here(home).kill("l1")
    assert programs.asked() == [f"{YARNS} -kill application_17_0042", f"{YARNS} -status application_17_0042"]
    assert verdict(home) is DriverVerdict.DEAD
    assert ensure(here(home), "l2") == "l2"
    assert len(programs.asked()) == 2  # it is killed once


@pytest.mark.parametrize(
    ("managed", "where"),
    [
        (ON_YARN, "is shown by `yarn logs -applicationId application_17_0042`"),
        (POD, "is shown by `kubectl logs --namespace streams numbers-driver`"),
        (None, "is on no host: no cluster manager has started it"),
    ],
)
def test_a_driver_in_cluster_mode_has_its_log_with_its_manager(
    home: Path, managed: cluster_manager.ManagedDriver | None, where: str
) -> None:
    says = (sys.executable, "-c", "print('submitted\\x1b')")
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", says, is_remote=True)
    process.wait_until(lambda: process.find(home, NAME) is None, "the end of spark-submit", 10)
    if managed is not None:
        cluster_manager.record(home, managed)
    place = f"{home / 'driver.log'} on {ELSEWHERE}"
    of_submit = f"the last lines of spark-submit, {place}:\nsubmitted\\u001b"
    assert here(home).log_end() == f"the whole log of the driver {where}; {of_submit}"


def test_the_last_lines_of_a_log_are_those_of_the_host_that_launched(home: Path) -> None:
    shared = home / "shared"
    lines = "\n".join(f"{n} {'x' * 500}" for n in range(1_000))
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE, shared=shared), "l1", NOTHING)
    log = shared / ELSEWHERE / "driver.log"
    process.wait_until(lambda: process.find(log.parent, NAME) is None, "the end of the driver", 10)
    log.write_text(lines)
    end = Driver(home, RIGHT_TO_KILL, shared=shared).log_end()
    assert end.startswith(f"the whole log of the driver is {log} on {ELSEWHERE}; its last lines:\n950 xxx")
    assert end.endswith(lines[-50:])
    log.unlink()
    unread = Driver(home, RIGHT_TO_KILL, shared=shared).log_end()
    assert unread == f"{end.partition(chr(10))[0]}\n(this host can read no line of it)"


def test_an_undrained_driver_is_killed_through_its_manager(home: Path, programs: Programs) -> None:
    submit = ("spark-submit", "--master", "k8s://https://api:6443", "--deploy-mode", "cluster")
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", NOTHING, is_remote=True)
    process.stop(home, NAME, grace_s=0)
    launch = here(home).launch()
    assert launch is not None
    assert launch.submit == (*NOTHING[:-1],)  # the options before the job's file
    here(home)._remember(replace(launch, submit=submit))
    cluster_manager.record(home, POD)
    beat(home, "l1")
    programs.answer("Application not found.\n")
    here(home).stop("l1", by="ann", now_ms=wall_clock_ms())
    at_once = "--conf spark.kubernetes.appKillPodDeletionGracePeriod=0"
    assert programs.asked() == [
        f"{' '.join(submit)} {at_once} --kill streams:numbers-driver",
        f"{' '.join(submit)} --status streams:numbers-driver",
    ]
    assert ensure(here(home), "l2") == "l2"  # though the last beat is recent


def test_a_driver_that_its_manager_cannot_kill_is_named(
    home: Path, programs: Programs, caplog: pytest.LogCaptureFixture
) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", is_remote=True)
    process.stop(home, NAME, grace_s=0)
    cluster_manager.record(home, ON_YARN)
    beat(home, "l1")
    programs.answer("Application Report :\n\tState : RUNNING\n")
    with pytest.raises(TidemarkError, match=r"on other-host.*yarn application -kill"):
        here(home).stop("l1", by="ann", now_ms=wall_clock_ms())
    assert "application_17_0042 still runs, yarn says: Application Report :" in caplog.text
    beat(home, "l1", age_ms=5_100)
    assert ensure(here(home), "l2") == "l2"  # its epoch keeps a silent one from writing


def test_a_driver_that_has_ended_is_not_killed(home: Path, programs: Programs) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "l1", is_remote=True)
    process.stop(home, NAME, grace_s=0)
    cluster_manager.record(home, ON_YARN)
    beat(home, "l1", state=StreamState.DRAINED)
    assert ensure(here(home), "l2") == "l2"
    assert programs.asked() == []


def test_the_driver_that_beats_is_adopted_whatever_came_after(home: Path) -> None:
    ensure(Driver(home, RIGHT_TO_KILL, host=ELSEWHERE), "lost the race", NOTHING)
    process.stop(home, NAME, grace_s=0)
    beat(home, "won it")
    launch = here(home).launch()
    assert launch is not None
    here(home)._remember(replace(launch, at_ms=wall_clock_ms() - 61_000))
    assert verdict(home) is DriverVerdict.STALE
    assert ensure(here(home), "l3") == "won it"
    assert verdict(home) is DriverVerdict.ALIVE


def test_of_two_drivers_without_a_common_lock_one_gets_the_epoch(home: Path) -> None:
    code = f"""
import fcntl, sys
fcntl.flock = lambda *_: None  # as on a file system without it
from pathlib import Path
from tidemark.control.folder import AlreadyRunning, Control
control = Control(Path({str(home)!r}))
print("ready", flush=True)
sys.stdin.readline()
try:
    print(control.acquire())
except AlreadyRunning:
    print("no")
"""
    for _ in range(5):
        pair = [
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for one in pair:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in pair:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        got = [one.communicate()[0].strip() for one in pair]
        epochs = [int(word) for word in got if word != "no"]
        assert epochs
        assert len(set(epochs)) == len(epochs)
        assert Control(home).epoch() in epochs


def test_an_epoch_that_a_dead_driver_never_used_is_skipped(home: Path) -> None:
    assert Control(home).acquire() == 1
    (home / "epoch.claim.2").touch()
    with pytest.raises(AlreadyRunning):
        Control(home).acquire()
    (home / "driver.lock").unlink()
    assert Control(home).acquire() == 3
