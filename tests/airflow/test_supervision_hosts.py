"""Drivers elsewhere: judged by their heartbeat alone, drained, taken over when silent, and never two."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.clock import wall_clock_ms
from tidemark.control import AlreadyRunning, Control, Heartbeat, StreamState
from tidemark.embedded import process
from tidemark.errors import TidemarkError
from tidemark_driver import NAME, Driver, Patience, Verdict

PATIENCE = Patience(stale_after_s=5.0, start_within_s=60.0, drain_within_s=0.3)
ELSEWHERE = "other-host"
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
NOTHING = (sys.executable, "-c", "pass")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    process.stop(tmp_path, NAME, grace_s=0)


def here(home: Path) -> Driver:
    return Driver(home, PATIENCE)


def beat(home: Path, launch_id: str, *, age_ms: int = 0, state: StreamState = StreamState.RUNNING) -> None:
    """What the driver of *launch_id*, which runs elsewhere, wrote *age_ms* ago."""
    sent = Heartbeat(
        state=state, epoch=1, launch_id=launch_id, at_ms=wall_clock_ms() - age_ms, pid=1, host=ELSEWHERE, digest="d"
    )
    Control(home).beat(sent)


def ensure(driver: Driver, launch_id: str, command: tuple[str, ...] = SLEEP, **how: bool) -> str:
    return driver.ensure(command, {}, launch_id, now_ms=wall_clock_ms(), digest="d", **how).launch_id


def verdict(home: Path, *, in_ms: int = 0) -> Verdict:
    return here(home).verdict(now_ms=wall_clock_ms() + in_ms)


def test_in_cluster_mode_the_process_that_submits_may_end_while_the_driver_starts(home: Path) -> None:
    ensure(here(home), "l1", NOTHING, is_remote=True)
    process.wait_until(lambda: process.find(home, NAME) is None, "the end of spark-submit", 10)
    assert verdict(home) is Verdict.ALIVE
    assert ensure(here(home), "l2", is_remote=True) == "l1"
    assert verdict(home, in_ms=61_000) is Verdict.STALE


def test_in_client_mode_it_may_not(home: Path) -> None:
    ensure(here(home), "l1", NOTHING)
    process.wait_until(lambda: process.find(home, NAME) is None, "the end of spark-submit", 10)
    assert verdict(home) is Verdict.DEAD


def test_a_driver_elsewhere_lives_as_long_as_it_beats(home: Path) -> None:
    ensure(Driver(home, PATIENCE, host=ELSEWHERE), "l1")
    process.stop(home, NAME, grace_s=0)  # from here it could not be seen either
    assert verdict(home) is Verdict.ALIVE
    beat(home, "l1")
    assert verdict(home) is Verdict.ALIVE
    assert ensure(here(home), "l2") == "l1"
    beat(home, "l1", age_ms=5_100)
    assert verdict(home) is Verdict.STALE


@pytest.mark.parametrize("state", [StreamState.DRAINED, StreamState.ROTATED, StreamState.FAILED])
def test_a_driver_elsewhere_has_ended_when_it_says_so(home: Path, state: StreamState) -> None:
    ensure(Driver(home, PATIENCE, host=ELSEWHERE), "l1")
    beat(home, "l1", state=state, age_ms=60_000)
    assert verdict(home).value == state.value


def test_a_driver_elsewhere_that_does_not_drain_is_not_said_to_be_gone(home: Path) -> None:
    ensure(Driver(home, PATIENCE, host=ELSEWHERE), "l1", is_remote=True)
    beat(home, "l1")
    with pytest.raises(TidemarkError, match=r"on other-host.*kubectl delete pod"):
        here(home).stop("l1", by="ann", now_ms=wall_clock_ms())
    assert Control(home).drain_requested()
    assert process.find(home, NAME) is not None  # what a pid means elsewhere is not known here


def test_a_silent_driver_elsewhere_is_taken_over(home: Path) -> None:
    ensure(Driver(home, PATIENCE, host=ELSEWHERE), "l1", is_remote=True)
    process.stop(home, NAME, grace_s=0)
    beat(home, "l1", age_ms=5_100)
    here(home).kill("l1")
    assert ensure(here(home), "l2") == "l2"
    started = process.find(home, NAME)
    assert started is not None
    arguments = Path(f"/proc/{started.pid}/cmdline").read_bytes().decode().split("\0")
    assert arguments[-4:-1] == ["--take-over", "--silent-after", "5"]


def test_the_driver_that_beats_is_adopted_whatever_other_launch_came_after_it(home: Path) -> None:
    ensure(Driver(home, PATIENCE, host=ELSEWHERE), "lost the race", NOTHING)
    process.stop(home, NAME, grace_s=0)
    beat(home, "won it")
    launch = here(home).launch()
    assert launch is not None
    here(home)._remember(replace(launch, at_ms=wall_clock_ms() - 61_000))
    assert verdict(home) is Verdict.STALE
    assert ensure(here(home), "l3") == "won it"
    assert verdict(home) is Verdict.ALIVE


def test_of_two_drivers_that_start_at_once_where_no_lock_is_seen_one_gets_the_epoch(home: Path) -> None:
    code = f"""
import fcntl, sys
fcntl.flock = lambda *_: None  # as on a file system without it
from pathlib import Path
from tidemark.control import AlreadyRunning, Control
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


def test_an_epoch_that_was_claimed_by_a_driver_that_died_before_it_used_it_is_passed_over(home: Path) -> None:
    assert Control(home).acquire() == 1
    (home / "epoch.claim.2").touch()
    with pytest.raises(AlreadyRunning):
        Control(home).acquire()
    (home / "driver.lock").unlink()
    assert Control(home).acquire() == 3
