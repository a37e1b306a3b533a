"""The driver of one stream: launched or adopted, judged, drained, killed.

Purpose: the operator (worker) and its trigger (triggerer) are different processes at different times, perhaps on
different hosts; all that they share about a driver lies in the stream's control folder, see `tidemark.control.folder`.

How it works: this module adds files to that folder. `launch.json` names the launch whose heartbeats count. `drain.told`
exists once a task has succeeded on a drain. `failures.json` counts failures in a row, whichever try of a task sees
them. `launch.lock` is held during a launch or a kill. The lock and the process decide about a driver on this host, the
heartbeat alone about one elsewhere. A driver that a cluster manager runs is killed through it
(`control.cluster_manager`). Any other silent driver elsewhere is replaced.

`driver.pid.json` and `driver.log` (see `control.process`) lie in the folder of the process, which is requested there to
run a stream (see `tidemark.control.driver_folder`). The process is killed when a stream hangs; as long as it runs other
streams, for no other reason.

If the control folder is in an object store, the files of processes, their secrets and `launch.lock` lie on this host
(`control.driver_folder.processes_of`). No lock there ends with a process. So the process with the heartbeat's pid
decides about a driver on this host, and the lease of a dead one is given back for it before the next one starts.

Known limitation: a driver on another host without a cluster manager can be drained but not killed from here. Clock:
epoch ms UTC, the caller's; those of several hosts must agree to within a few seconds.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.control import cluster_manager, launch_secrets, process
from tidemark.control.driver_folder import DriverFolder, StartRequest, processes_of
from tidemark.control.files import parsed, read
from tidemark.control.folder import BEATS_EVERY_MS, Control, Heartbeat, StreamState, beats_every_ms
from tidemark.control.spark_files import with_spark_folder
from tidemark.errors import TidemarkError
from tidemark.safe_text import inert, without_secrets
from tidemark.selection import names_in
from tidemark.semantics.liveness import RightToKill
from tidemark.storage import location
from tidemark.storage.disk import is_over
from tidemark.storage.library import version
from tidemark.storage.locks import locked, own_folder
from tidemark.storage.object_path import ObjectPath

log = logging.getLogger(__name__)

NAME = "driver"
POLL_S = 0.1
TERMINATED_WITHIN_S = 5.0
LAUNCHED_WITHIN_S = 60.0
"""Longest time of another process for a launch or a kill, without its wait for a drain."""
TAIL_LINES = 50
TAIL_BYTES = 64 * 1_024
"""No more of a log is read for its last lines: logs may be large."""
BY_CHANGE = "airflow: the topology file has changed"


class DriverVerdict(StrEnum):
    """What a task does about a driver: it waits, kills it, or does what its end asks for.

    The state of a stream is another question, and has other limits (`tidemark.semantics.liveness`).
    """

    ALIVE = "alive"
    """The task waits."""
    STALE = "stale"
    """It has sent no heartbeat for so long that it may be killed."""
    STUCK = "stuck"
    """It sends heartbeats, and has worked on one step for so long that it may be killed."""
    DEAD = "dead"
    DRAINED = "drained"
    ROTATED = "rotated"
    FINISHED = "finished"
    FAILED = "failed"


_ENDED = {
    StreamState.DRAINED: DriverVerdict.DRAINED,
    StreamState.ROTATED: DriverVerdict.ROTATED,
    StreamState.FINISHED: DriverVerdict.FINISHED,
    StreamState.FAILED: DriverVerdict.FAILED,
}


@dataclass(frozen=True)
class Launch:
    """The newest launch of a stream, or its adoption.

    Attributes:
        launch_id: its id.
        at_ms: when it was.
        host: the host that launched.
        digest: that of the topology file.
        is_remote: True in cluster mode, in which the process that was started here may end while the driver lives.
        submit: `spark-submit` with the options by which it was submitted in cluster mode.
    """

    launch_id: str
    at_ms: int
    host: str = ""
    digest: str = ""
    is_remote: bool = False
    submit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failures:
    """So many (`n`) failures of one `kind` in a row, of which the newest was that of `launch_id`.

    Once a task has failed on them (`told`), they do not count any more.
    """

    launch_id: str
    kind: str
    n: int
    told: bool = False


class Driver:
    """The driver whose control folder is *home*, as seen from *host*, by default this host.

    The driver's process has the folder `process_home`: one in *shared* for each host, if it runs several streams, else
    *home*. For an object store it is the folder on this host that belongs to these.
    """

    def __init__(
        self, home: Path, right_to_kill: RightToKill, *, host: str | None = None, shared: Path | None = None
    ) -> None:
        self.home, self.shared = home, shared
        self.control = Control(home)
        # In an object store a driver beats, and reads requests, every 20 s. Silence is at least three beats.
        beat_s, later_s = beats_every_ms(home) / 1_000, (beats_every_ms(home) - BEATS_EVERY_MS) / 1_000
        self._right_to_kill = replace(
            right_to_kill,
            silent_s=max(right_to_kill.silent_s, 3 * beat_s),
            draining_s=right_to_kill.draining_s + later_s,
        )
        self._host = platform.node() if host is None else host
        self._here = processes_of(home)
        self.process_home = self._here if shared is None else processes_of(shared) / self._host
        self._folder = DriverFolder(self.process_home)
        self._drain_reported = home / "drain.told"

    def ensure(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        launch_id: str,
        *,
        arguments: Sequence[str] = (),
        now_ms: int,
        digest: str = "",
        is_remote: bool = False,
        secrets: Callable[[], Mapping[str, str]] = dict,
        by: str = "",
    ) -> Launch:
        """Returns the launch of a live driver, or launches a new one.

        A driver that runs another topology file than that of *digest* is requested to drain. A draining driver is not
        adopted but waited for, and killed when it takes too long, unless its process runs other streams, too.

        Args:
            command: starts a process where none runs.
            env: environment of the process.
            launch_id: id of a new launch.
            arguments: arguments of the stream.
            now_ms: the clock.
            digest: the digest of the topology file.
            is_remote: True if the driver runs in cluster mode.
            secrets: looks up secrets of Kafka clusters for a new driver, which gets them in a file.
            by: the task that launches or adopts.
        """
        with self._launching():
            adopted = self._adopt(now_ms)
            if adopted is not None and not self.control.drain_requested():
                if self._digest(adopted) == digest:
                    if by:
                        self.control.adopt(adopted.launch_id, by=by)
                    return adopted
                self.control.request_drain(by=BY_CHANGE, now_ms=now_ms)
            if self.control.drain_requested():
                self._await_end()
            values = secrets()
            self._refuse_secrets_elsewhere(values, is_remote=is_remote)
            self._kill()
            self._release_for_dead()
            # Not earlier: a driver that still runs has to see the request.
            self.control.forget_drain()
            self._drain_reported.unlink(missing_ok=True)
            # Written before the start: a worker that dies in between leaves a launch that counts as dead, instead of a
            # driver that no task knows.
            submit = tuple(command[:-1]) if is_remote else ()
            launch = self._remember(Launch(launch_id, now_ms, self._host, digest, is_remote, submit))
            start_arguments = (*self._leave_secrets(launch_id, values), *self._take_over_options())
            start = StartRequest(launch_id, str(self.home), (*arguments, *start_arguments))
            self._start([*command, "--driver", str(self.process_home)], env, start)
        return launch

    def verdict(self, *, now_ms: int) -> DriverVerdict:
        """Returns what is to be done about the newest launch's driver, by its heartbeat, and its lock if it is here."""
        launch = self.launch()
        if launch is None:
            return DriverVerdict.DEAD
        is_here = launch.host in (self._host, "") and not launch.is_remote
        has_process = not is_here or self._has_process(launch)
        beat = self.control.heartbeat()  # after the look for its process: if that has ended, it has sent its last beat
        if beat is None or beat.launch_id != launch.launch_id:
            return (
                _is_within(now_ms - launch.at_ms, self._right_to_kill.starting_s) if has_process else DriverVerdict.DEAD
            )
        if self._has_ended(beat):
            last = self.control.heartbeat()  # the driver may have sent one more before it ended
            if last is not None and last.launch_id == beat.launch_id:
                beat = last
            return _ENDED.get(beat.state, DriverVerdict.DEAD)
        pulse = _is_within(now_ms - beat.at_ms, self._right_to_kill.silent_s)
        if pulse is DriverVerdict.ALIVE and not self._is_stuck(beat):
            return pulse
        if self._is_killed(beat):
            return DriverVerdict.DEAD
        return pulse if pulse is DriverVerdict.STALE else DriverVerdict.STUCK

    def stop(self, launch_id: str, *, by: str, now_ms: int) -> None:
        """Drains the driver of *launch_id*, or kills it if necessary.

        The lease of a driver that was killed is given back, if its process here is gone.
        """
        # A younger driver is left alone.
        if not self._is_newest(launch_id):
            return
        self.control.request_drain(by=by, now_ms=now_ms)
        self._await_end(launch_id)
        with self._launching():
            if self._is_newest(launch_id):
                self._kill()
                self._release_for_dead()

    def kill(self, launch_id: str, *, by: str = "") -> None:
        """Kills the driver of *launch_id* at once; records who does so."""
        with self._launching():
            if self._is_newest(launch_id):
                with suppress(OSError):  # a folder that cannot be written keeps no driver alive
                    self.control.kill_for(launch_id, "", by=by)
                # The other streams of the process die too, and must not count that as their failure.
                for other, home in self._folder.launches().items():
                    if other != launch_id:
                        Control(location.location(home)).kill_for(other, "/".join(self.home.parts[-2:]), by=by)
                # A silent driver elsewhere that has no cluster manager cannot be killed, and is replaced later.
                self._kill(grace_s=0, with_others=True)

    def killed_for(self) -> str | None:
        """Returns the hung stream of the same process for which the newest launch was killed, if there was one."""
        launch = self.launch()
        return None if launch is None else self.control.killed_for(launch.launch_id)

    def launch(self) -> Launch | None:
        """Returns the newest launch, or None if there was none."""
        return read(self.home, "launch.json", partial(parsed, Launch))

    def heartbeat(self) -> Heartbeat | None:
        """Returns the newest heartbeat of the newest launch, or None if it has sent none."""
        launch, beat = self.launch(), self.control.heartbeat()
        return beat if launch is not None and beat is not None and beat.launch_id == launch.launch_id else None

    def drained_by(self) -> str | None:
        """Returns who requested the drain, or None if nobody did."""
        return self.control.drained_by()

    def unreported_drain(self) -> str | None:
        """Returns who requested a drain on which no task has succeeded yet."""
        return None if self._drain_reported.exists() else self.drained_by()

    def report_drain(self) -> None:
        """Records that a task has succeeded on the requested drain."""
        location.replace(self._drain_reported, "")

    def count_failure(self, kind: str, *, made_progress: bool) -> int:
        """Returns how often in a row drivers have failed in one way, after the newest launch failed in *kind*.

        A launch counts once. A driver that had *made_progress* ends a row.
        """
        before, launch = self.failures(), self.launch()
        launch_id = launch.launch_id if launch is not None else ""
        # Two tries of a task may see the same failure.
        if before is not None and before.launch_id == launch_id:
            return before.n
        follows = before is not None and before.kind == kind and not before.told and not made_progress
        failures = Failures(launch_id, kind, before.n + 1 if before is not None and follows else 1)
        self._write("failures.json", failures)
        return failures.n

    def failures(self) -> Failures | None:
        """Returns the last counted failures, or None before the first."""
        return read(self.home, "failures.json", partial(parsed, Failures))

    def failure_is_reported(self) -> bool:
        """Returns True if a task has failed on the newest launch's end."""
        failures, launch = self.failures(), self.launch()
        return bool(failures and launch and failures.told and failures.launch_id == launch.launch_id)

    def forget_failures(self) -> None:
        """Ends a row of failures: the stream made progress, or starts anew."""
        (self.home / "failures.json").unlink(missing_ok=True)

    def report_failures(self) -> None:
        """Records that a task has failed on the last counted failures."""
        if (failures := self.failures()) is not None:
            self._write("failures.json", replace(failures, told=True))

    @property
    def log_file(self) -> Path:
        """The file with the log of the process that was started for the newest launch, on the host that launched."""
        launch = self.launch()
        home = self.process_home
        if self.shared is not None and launch is not None and launch.host:
            home = home.with_name(launch.host)
        return home / f"{NAME}.log"

    def log_end(self) -> str:
        """Returns where the whole log of the newest launch's driver is, and the last lines that this host can read.

        Secrets that this process has looked up are removed from the lines.
        """
        launch = self.launch()
        log_at = f"{self.log_file} on {(launch and launch.host) or self._host}"
        lines = without_secrets(inert(_last_lines(self.log_file))) or "(this host can read no line of it)"
        if launch is None or not launch.is_remote:
            return f"the whole log of the driver is {log_at}; its last lines:\n{lines}"
        managed = cluster_manager.recorded(self.home, launch.launch_id)
        where = (
            f"is shown by `{managed.log_command}`" if managed else "is on no host: no cluster manager has started it"
        )
        return f"the whole log of the driver {where}; the last lines of spark-submit, {log_at}:\n{lines}"

    def _adopt(self, now_ms: int) -> Launch | None:
        """Returns the launch of the driver that lives or is about to start, if there is one."""
        if self.verdict(now_ms=now_ms) is DriverVerdict.ALIVE:
            return self.launch()
        beat = self.control.heartbeat()
        if beat is None or beat.state in _ENDED or self.heartbeat() is not None or self._runs_what_we_launched():
            return None
        if self._lives():
            # A driver that was started by hand becomes the newest launch.
            return self._remember(Launch(beat.launch_id, now_ms, beat.host, beat.digest))
        return None

    def _digest(self, launch: Launch) -> str:
        """Returns the digest of the topology file that *launch* runs."""
        beat = self.heartbeat()
        return launch.digest if beat is None else beat.digest

    def _is_here(self, beat: Heartbeat) -> bool:
        return beat.host in (self._host, "")

    def _has_ended(self, beat: Heartbeat) -> bool:
        if not self._is_here(beat):
            return beat.state in _ENDED
        if isinstance(self.home, ObjectPath) and beat.state not in _ENDED:
            return self._is_dead(beat)  # a look at the lease would cost requests, every few seconds
        return not self._is_held(beat)

    def _is_stuck(self, beat: Heartbeat) -> bool:
        """Returns True if the driver has done the same for too long."""
        # A driver that waits for its disk reports that as its reason, and may wait until the disk takes writes again.
        waits = beat.reason is not None and not is_over(beat.reason)
        if beat.since_ms is None or waits or beat.state in _ENDED:
            return False
        is_starting = beat.state is StreamState.STARTING
        limit_s = self._right_to_kill.starting_s if is_starting else self._right_to_kill.working_s
        return beat.at_ms - beat.since_ms > limit_s * 1_000

    def _await_end(self, launch_id: str | None = None) -> None:
        """Returns when no driver runs, when *launch_id* is not the newest launch any more, or out of patience."""
        deadline = time.monotonic() + self._right_to_kill.draining_s
        while self._runs() and time.monotonic() < deadline:
            if launch_id is not None and not self._is_newest(launch_id):
                return
            time.sleep(POLL_S)

    def _runs(self) -> bool:
        return self._lives() or self._runs_what_we_launched()

    def _runs_what_we_launched(self) -> bool:
        launch = self.launch()
        return launch is not None and launch.host in (self._host, "") and self._has_process(launch)

    def _has_process(self, launch: Launch) -> bool:
        """Returns True if a process here runs *launch*, or will."""
        return self._process() is not None and launch.launch_id in self._folder.launches()

    def _process(self) -> process.Process | None:
        return process.find(self.process_home, NAME)

    def _start(self, command: Sequence[str], env: Mapping[str, str], start: StartRequest) -> None:
        """Requests the process to run *start*; *command* starts a process with this version where none runs."""
        # The line has the version, since all streams of a process run the same code.
        line = f"{shlex.join(command)} # {version()}"
        # A driver without streams holds this lock until it ends, so it cannot end between the look and the request.
        with self._folder.asking(within_s=LAUNCHED_WITHIN_S):
            if self._process() is not None and self._folder.command() != line:
                self._end_older_command()
            self._folder.ask(start)
            if self._process() is None:
                self._folder.begin(line)
                private = with_spark_folder(self.process_home, env)
                process.launch(NAME, command, home=self.process_home, env=private)

    def _end_older_command(self) -> None:
        """Drains and ends a process that another command started."""
        controls = [Control(location.location(home)) for home in self._folder.launches().values()]
        # Only streams of the same topology are drained here: no command changes those of others.
        topologies = {control.home.parent for control in controls}
        if others := topologies - {self.home.parent}:
            names = ", ".join(sorted(names_in(others)))
            msg = (
                f"{self.process_home}: streams of one driver need the same [spark] and version of Tidemark, but those "
                f"of {names} were started with others; give this topology another driver, or drain those first"
            )
            raise TidemarkError(msg)
        for control in controls:
            control.request_drain(by=BY_CHANGE, now_ms=wall_clock_ms())
        deadline = time.monotonic() + self._right_to_kill.draining_s
        while any(map(Control.is_held, controls)):
            if time.monotonic() > deadline:
                names = ", ".join("/".join(control.home.parts[-2:]) for control in controls)
                msg = f"{self.process_home}: a new command needs a new process; {names} must drain first: try again"
                raise TidemarkError(msg)
            time.sleep(POLL_S)
        process.stop(self.process_home, NAME, grace_s=TERMINATED_WITHIN_S)

    def _lives(self) -> bool:
        """Returns True if a driver holds the lock here, or beats elsewhere."""
        beat = self.control.heartbeat()
        if beat is None or self._is_here(beat):
            return self._is_held(beat)
        age_ms = wall_clock_ms() - beat.at_ms
        is_recent = age_ms <= self._right_to_kill.silent_s * 1_000
        return beat.state not in _ENDED and is_recent and not self._is_killed(beat)

    def _is_held(self, beat: Heartbeat | None) -> bool:
        """Returns True if a driver here has the lease, and lives."""
        return self.control.is_held(dead_epoch=beat.epoch if beat is not None and self._is_dead(beat) else None)

    def _is_dead(self, beat: Heartbeat) -> bool:
        """Returns True if *beat* came from a process here that has ended."""
        return beat.host == self._host and not process.exists(beat.pid)

    def _release_for_dead(self) -> None:
        """Gives back a dead driver's lease: the next one need not wait."""
        beat = self.control.heartbeat()
        if beat is not None and beat.state not in _ENDED and self._is_dead(beat):
            self.control.release_for(beat.epoch)

    def _refuse_secrets_elsewhere(self, secrets: Mapping[str, str], *, is_remote: bool) -> None:
        """Raises TidemarkError if a driver elsewhere could not read *secrets*."""
        if secrets and is_remote and isinstance(self.home, ObjectPath):
            msg = (
                f"kafka.{min(secrets)}: a driver in cluster mode, with a warehouse in an object store, cannot get "
                "secrets from an Airflow connection; name an environment variable or a file of its host"
            )
            raise TidemarkError(msg)

    def _leave_secrets(self, launch_id: str, secrets: Mapping[str, str]) -> tuple[str, ...]:
        """Leaves *secrets* for the driver; returns the option that names their file."""
        launch_secrets.forget(self._here)
        return ("--secrets", str(launch_secrets.leave(self._here, launch_id, secrets))) if secrets else ()

    def _take_over_options(self) -> tuple[str, ...]:
        """Returns options of a driver that replaces a silent one elsewhere."""
        beat = self.control.heartbeat()
        # The silent driver may still live, but the process with the next epoch is the one that writes.
        is_elsewhere = beat is not None and not self._is_here(beat) and beat.state not in _ENDED
        return ("--take-over", "--silent-after", f"{self._right_to_kill.silent_s:g}") if is_elsewhere else ()

    def _kill(self, grace_s: float = TERMINATED_WITHIN_S, *, with_others: bool = False) -> None:
        """Ends the launched process, and verifies that no driver runs.

        A process that runs other streams, too, is only ended *with_others*.
        """
        launch, beat = self.launch(), self.control.heartbeat()
        if launch is None or launch.host in (self._host, ""):
            self._end_process(launch, grace_s, with_others=with_others)
        # A driver that was killed before it had read its secrets has not removed them.
        launch_secrets.forget(self._here)
        self._kill_by_manager(launch, beat)
        if self._lives():
            msg = (
                f"{self.home}: the driver that runs cannot be ended from {self._host} "
                f"(pid {beat.pid if beat else 'unknown'} on {(beat and beat.host) or 'this host'}); end it by hand: "
                "kill -9 there, yarn application -kill, or kubectl delete pod; where its process runs other streams, "
                "too, it ends after its batch, and this is tried again"
            )
            raise TidemarkError(msg)

    def _kill_by_manager(self, launch: Launch | None, beat: Heartbeat | None) -> None:
        """Kills the driver of *beat* through its cluster manager, if any."""
        if beat is None or not (self._lives() if self._is_here(beat) else beat.state not in _ENDED):
            return
        managed = cluster_manager.recorded(self.home, beat.launch_id)
        if managed is None or managed.ended:
            return
        submit = launch.submit if launch is not None else ()
        log.info("killing %s through %s", managed.application, managed.manager.value)
        try:
            cluster_manager.kill(self.home, managed, submit, process.without_airflow(os.environ))
        except TidemarkError as error:
            # The next driver takes over from a silent one nevertheless.
            log.warning("%s", error)
            return
        self.control.release_for(beat.epoch)
        deadline = time.monotonic() + TERMINATED_WITHIN_S
        # The driver's container ends a moment after the manager has called the driver gone.
        while self._lives() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _is_killed(self, beat: Heartbeat) -> bool:
        """Returns True if a cluster manager has killed the driver of *beat*."""
        managed = cluster_manager.recorded(self.home, beat.launch_id)
        return managed is not None and managed.ended

    def _end_process(self, launch: Launch | None, grace_s: float, *, with_others: bool) -> None:
        if self.process_home != self._here:
            # An earlier topology file gave the stream a process of its own.
            process.stop(self._here, NAME, grace_s=grace_s)
        with self._folder.asking(within_s=LAUNCHED_WITHIN_S):
            others = {*self._folder.launches()} - {launch.launch_id if launch else ""}
            if with_others or not (others and self._process()):
                process.stop(self.process_home, NAME, grace_s=grace_s)
            if launch is not None:
                self._folder.withdraw(launch.launch_id)

    def _is_newest(self, launch_id: str) -> bool:
        launch = self.launch()
        return launch is not None and launch.launch_id == launch_id

    def _remember(self, launch: Launch) -> Launch:
        self._write("launch.json", launch)
        return launch

    def _write(self, name: str, content: Launch | Failures) -> None:
        location.replace(self.home / name, json.dumps(asdict(content)))

    @contextmanager
    def _launching(self) -> Iterator[None]:
        own_folder(self._here)
        # Two workers of one host must not launch at once, and none may kill a younger driver than it meant.
        with locked(self._here / "launch.lock", within_s=LAUNCHED_WITHIN_S + self._right_to_kill.draining_s):
            yield


def _last_lines(log: Path) -> str:
    """Returns the last TAIL_LINES lines of *log*, TAIL_BYTES at most, or empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            skipped = max(0, log.stat().st_size - TAIL_BYTES)
            file.seek(skipped)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    # The first line may have lost its beginning, and with it a part of a secret by which that is found.
    return "\n".join((lines[1:] if skipped else lines)[-TAIL_LINES:])


def _is_within(age_ms: int, limit_s: float) -> DriverVerdict:
    return DriverVerdict.ALIVE if age_ms <= limit_s * 1000 else DriverVerdict.STALE
