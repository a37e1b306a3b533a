"""Reads and writes the folder of a driver that runs several streams.

Purpose: whoever launches a stream finds the process that already runs other streams of the same driver, or starts one.
A lock makes sure that the process does not end between being found and being asked.

| file | written by | says |
|---|---|---|
| `start_ID.json` | the launcher of a stream | the launch ID, the stream's control folder, the arguments of its job |
| `running.json` | the driver, at changes and every ten seconds | its host, the launches that it runs, and the time |
| `command.txt` | the process that starts the driver | its command |
| `asking.lock` | held by a launcher that asks, and by a driver without streams until it ends | which one may ask |

The folder is on the driver's host, also if the warehouse is in an object store (`processes_of`).
Clock: epoch ms UTC of the driver's host.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.files import parsed, read
from tidemark.storage.location import replace
from tidemark.storage.locks import locked, open_lock, own_folder, take_lock
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger("tidemark.driver")

POLL_S = 0.5
"""Seconds between two looks for requests and ended streams."""
LISTED_EVERY_MS = 10_000
"""Longest time after which the list of running launches is written again. No reader depends on it."""
AIRFLOW_HOME = "AIRFLOW_HOME"
"""Variable with the folder of Airflow on this host; default `~/airflow`."""


def processes_of(control: Path) -> Path:
    """Returns the folder on this host for the locks, logs and records of processes of the folder *control*.

    On a disk this is *control* itself. An object store cannot have them, so for one they are in Airflow's home.
    """
    if not isinstance(control, ObjectPath):
        return control
    home = Path(os.environ.get(AIRFLOW_HOME) or Path.home() / "airflow")
    return home.joinpath("tidemark", "processes", *control.parts[1:])


@dataclass(frozen=True)
class StartRequest:
    """A request to run a stream under *launch_id*.

    *control* is the stream's control folder, and *arguments* are those of its job.
    """

    launch_id: str
    control: str
    arguments: tuple[str, ...]

    @property
    def stream(self) -> str:
        """The stream's name for people, TOPOLOGY/STREAM."""
        return "/".join(Path(self.control).parts[-2:])


@dataclass(frozen=True)
class RunningLaunches:
    """The launches that the driver on *host* runs at *at_ms* (epoch ms); empty before the driver has written them.

    *launches* has the control folder of each, by launch id.
    """

    at_ms: int = 0
    host: str = ""
    launches: Mapping[str, str] = field(default_factory=dict)


class DriverFolder:
    """Reads and writes the folder *home* of a driver. *clock* is epoch ms, and *sleep_s* waits for seconds."""

    def __init__(
        self, home: Path, *, clock: Clock = wall_clock_ms, sleep_s: Callable[[float], None] = time.sleep
    ) -> None:
        self.home, self._clock, self._sleep_s = home, clock, sleep_s
        self._ending: int | None = None

    @property
    def name(self) -> str:
        """The name of the driver, or of its topology or stream."""
        *folders, last = self.home.parts
        if ".drivers" in folders:
            return folders[folders.index(".drivers") + 1]
        return folders[folders.index(".driver") - 1] if ".driver" in folders else last

    @contextmanager
    def asking(self, within_s: float) -> Iterator[None]:
        """Keeps the driver from ending during the context, so that it can be asked.

        Raises LockHeld if another process is asking, or a driver is ending, for longer than *within_s*.
        """
        own_folder(self.home)
        with locked(self.home / "asking.lock", within_s=within_s):
            yield

    def ask(self, start: StartRequest) -> None:
        """Asks the driver to run *start*."""
        replace(self.home / f"start_{start.launch_id}.json", json.dumps(asdict(start)))

    def withdraw(self, launch_id: str) -> bool:
        """Removes the request of *launch_id*; returns False if there is none, or none any more."""
        try:
            (self.home / f"start_{launch_id}.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def launches(self) -> dict[str, str]:
        """Returns the control folders of all requested and running launches."""
        # The requests are read first: the driver lists a launch as running before it removes the request.
        requested = {start.launch_id: start.control for start in self._start_requests()}
        return {**self.running().launches, **requested}

    def running(self) -> RunningLaunches:
        """Returns the launches that the driver wrote last."""
        return read(self.home, "running.json", partial(parsed, RunningLaunches)) or RunningLaunches()

    def command(self) -> str:
        """Returns the command that started the process, or empty before the first process."""
        path = self.home / "command.txt"
        return path.read_text(errors="replace") if path.is_file() else ""

    def begin(self, command: str) -> None:
        """Records that a process is started by *command*, and forgets what an earlier process ran."""
        # The launches of an earlier process do not run any more.
        (self.home / "running.json").unlink(missing_ok=True)
        replace(self.home / "command.txt", command)

    def drive(self, run: Callable[[Sequence[str]], int]) -> int:
        """Runs all requested streams, each in a thread, until none is left; returns the highest exit status.

        *run* runs a stream: it gets the arguments of the stream's job, and returns its exit status.
        """
        threads, listed_ms, is_listed = _Threads(run), 0, False
        while threads.controls or not self._has_nothing_to_run():
            starts, has_ended = self._start_requests(), threads.forget_ended()
            # A launch is listed before its request is removed, so that a launcher finds it in one of the two.
            threads.controls |= {start.launch_id: start.control for start in starts}
            if starts or has_ended or not is_listed or self._clock() - listed_ms >= LISTED_EVERY_MS:
                listed_ms = self._clock()
                is_listed = self._list(RunningLaunches(listed_ms, platform.node(), threads.controls))
            for start in starts:
                if is_listed and self.withdraw(start.launch_id):  # one of two processes succeeds in this
                    threads.begin(start)
            self._sleep_s(POLL_S)
        return max(threads.statuses)

    def _list(self, running: RunningLaunches) -> bool:
        """Writes *running*; returns False if the disk refuses it."""
        try:
            replace(self.home / "running.json", json.dumps(asdict(running)))
        except OSError:  # a full disk ends no stream
            return False
        return True

    def _start_requests(self) -> list[StartRequest]:
        starts: list[StartRequest] = []
        for path in sorted(self.home.glob("start_*.json")):
            # The file is gone if the driver has begun the launch, or if its launcher has withdrawn it.
            if (start := read(self.home, path.name, partial(parsed, StartRequest))) is not None:
                starts.append(start)
        return starts

    def _has_nothing_to_run(self) -> bool:
        """Returns True if no launcher asks and there is no request; from then on no launcher can ask any more."""
        lock = open_lock(self.home / "asking.lock")
        if take_lock(lock, within_s=0) and not self._start_requests():
            # The file stays open, so that no launcher can ask until the end of this process releases the lock.
            self._ending = lock
            return True
        os.close(lock)
        return False


class _Threads:
    """Runs each launch in a thread. `controls` has their control folders, and `statuses` the exit statuses."""

    def __init__(self, run: Callable[[Sequence[str]], int]) -> None:
        self._run = run
        self._threads: dict[str, threading.Thread] = {}
        self.controls: dict[str, str] = {}
        self.statuses = [0]

    def begin(self, start: StartRequest) -> None:
        """Runs *start* in a thread that has the stream's name."""
        thread = threading.Thread(target=self._carry_out, args=[start], name=start.stream, daemon=True)
        self._threads[start.launch_id] = thread
        thread.start()

    def forget_ended(self) -> bool:
        """Forgets the launches that have ended; returns True if there were any."""
        ended = [launch_id for launch_id in self.controls if not self._runs(launch_id)]
        for launch_id in ended:
            del self.controls[launch_id]
            self._threads.pop(launch_id, None)
        return bool(ended)

    def _runs(self, launch_id: str) -> bool:
        return launch_id in self._threads and self._threads[launch_id].is_alive()

    def _carry_out(self, start: StartRequest) -> None:
        try:
            self.statuses.append(self._run(start.arguments))
        except SystemExit as end:  # argparse cannot read the arguments, and has logged the reason
            self.statuses.append(end.code if isinstance(end.code, int) else 1)
        except Exception:
            log.exception("%s could not be run", start.stream)
            self.statuses.append(1)
