"""Runs `flights` under `tidemark up` and kills each process once.

Purpose: shows that no process is special. The operator's part is played, too: he runs `tidemark up` again.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from streaming.drivers import PROJECT, ends_of

from support.airflow_checkout import own_checkout
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import StreamState
from tidemark.errors import TidemarkError
from tidemark.local import airflow, stack
from tidemark.local.conductor import Conductor
from tidemark.local.stack import Home
from tidemark.model.project.files import VARIABLE
from tidemark.model.topology import load

WITHIN_S = 240.0


class UnderAirflow:
    """An installation in *home* whose topology `flights` is *toml*."""

    def __init__(self, home: Path, toml: str, patch: pytest.MonkeyPatch) -> None:
        root = home / "root"
        file = own_checkout(root, toml)
        for name in (".jars", "docker", "expectations"):
            (root / name).symlink_to(PROJECT / name)
        for job in [*(PROJECT / "jobs").glob("*.py"), PROJECT / "jobs" / "tidemark"]:
            (root / "jobs" / job.name).symlink_to(job)
        patch.setattr(stack, "CHECKOUT", root)
        patch.setenv(VARIABLE, str(root))
        self._conductor = Conductor(Home(home), load(file), print)
        self._home = home

    def up(self) -> str:
        """Start what does not run; the address of Kafka."""
        address, api = self._conductor.start()
        self._conductor.launch_streams(api, ())
        return address

    def end(self) -> None:
        """Ends everything: Airflow first, which would launch drivers again."""
        airflow.stop(self._home / "airflow")
        for driver in Home(self._home).drivers():
            process.stop(driver, stack.DRIVER, grace_s=0)
        process.stop(self._home / "broker", "broker", grace_s=0)

    def offsets(self, sub: str) -> dict[str, int]:
        """How far the driver of *sub* has come."""
        (control,) = (control for control in self._conductor.controls() if control.home.name == sub)
        beat = control.heartbeat()
        return beat.offsets if beat is not None and beat.state is StreamState.RUNNING else {}

    def read_everything(self, address: str, topics: dict[str, str]) -> None:
        """Waits until the `status` driver has read *topics*, by source."""
        ends = ends_of(address, topics)
        process.wait_until(lambda: ends.items() <= self.offsets("status").items(), f"offsets {ends}", WITHIN_S)

    def drain(self) -> None:
        """End the streams, which then their DAG run does, too."""
        self._conductor.drain(airflow.api(self._home / "airflow"), by="ann")

    def kill_each(self) -> Iterator[str]:
        """Kills each process, drivers first; yields its pid file's place.

        It yields once all run again.
        """
        places = sorted(Home(self._home).running(), key=lambda place: not place.endswith(stack.DRIVER))
        for place in places:
            for number in range(len(self._family(place))):
                self._kill(place, number)
                yield place

    def _kill(self, place: str, number: int) -> None:
        family = self._family(place)  # now: those that were killed with another one have new ids
        victim = family[min(number, len(family) - 1)]
        os.kill(victim, signal.SIGKILL)
        killed_ms = wall_clock_ms()
        process.wait_until(lambda: not Path(f"/proc/{victim}/exe").exists(), f"the end of {victim}", WITHIN_S)
        with suppress(TidemarkError):  # a process may take a moment to end after a child of its own
            self.up()
        self.up()
        process.wait_until(lambda: self._beat_since(killed_ms), "drivers that beat", WITHIN_S)

    def _family(self, place: str) -> list[int]:
        """Returns the pids of the last process at *place* and its descendants."""
        leader = process.find(self._home / Path(place).parent, Path(place).name)
        assert leader is not None
        return [*_descendants(leader.pid), leader.pid]

    def _beat_since(self, since_ms: int) -> bool:
        beats = [control.heartbeat() for control in self._conductor.controls()]
        return all(beat and beat.state is StreamState.RUNNING and beat.at_ms > since_ms for beat in beats)


def _descendants(pid: int) -> list[int]:
    """The processes below *pid*, the lowest first."""
    found = []
    with suppress(FileNotFoundError):  # it has ended
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                found += [*_descendants(child), child]
    return found
