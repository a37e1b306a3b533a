"""Launches, finds and stops processes that outlive the command that started them.

Purpose: `tidemark up` starts servers and returns; `tidemark down`, another process, finds and stops them.

How it works: each process leads a session of its own and is recorded in `<home>/<name>.pid.json` as (pid, start time);
both must match, because pids are reused. `stop` reaches all of that session and every descendant of its leader:
SIGTERM, a wait until all are gone, SIGKILL for the rest after the grace period.

What it does not do: restart dead processes, or guard one name against two launches at the same instant.

Known limitation: Linux only (/proc); a descendant with a session of its own is found only while its parents live.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidemark.control.files import read
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.graph import inverted, reached

POLL_S, LONGEST_POLL_S = 0.1, 2.0
POLL_PART = 0.05
"""The time between two polls, as a share of the wait so far.

A poll of tables or a request to Airflow is expensive, and a long wait may well last a little longer.
"""
KILLED_WITHIN_S = 10.0
TAIL_LINES = 20
DEFERRED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
"""Signals that are held back while a process is launched, so that no process lives without its pid file."""


@dataclass(frozen=True)
class Process:
    """A launched process, *started* so many clock ticks after boot."""

    name: str
    pid: int
    started: int
    log: Path


class _Member(NamedTuple):
    pid: int
    started: int


class _Stat(NamedTuple):
    state: str
    parent: int
    session: int
    threads: int
    started: int

    @property
    def has_ended(self) -> bool:
        # A zombie whose threads are still ending holds on to its ports and files.
        return self.state in "ZX" and self.threads <= 1


def launch(name: str, command: Sequence[str], *, home: Path, env: Mapping[str, str]) -> Process:
    """Starts *command* in a new session, or returns the process *name* if it is running.

    The process gets exactly the environment *env*, and its output is appended to `<home>/<name>.log`. If an earlier
    process of this name has died, processes that it left behind are stopped first. The new process need not be ready
    yet: see `wait_until`.

    Raises:
        InvalidArgument: the program cannot be found.
    """
    if (running := find(home, name)) is not None:
        return running
    # Processes that a dead leader left behind may still hold its port or its lock.
    stop(home, name)
    program = shutil.which(command[0], path=env.get("PATH", os.defpath))
    if program is None:
        msg = f"{name} cannot start: program {command[0]!r} not found; install it or correct PATH"
        raise InvalidArgument(msg)
    home.mkdir(parents=True, exist_ok=True)
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED)
    try:
        pid = _spawn(program, command, home / f"{name}.log", env)
        started = _stats()[pid].started  # listed even if it has ended: only its parent, which is here, could reap it
        _pid_file(home, name).write_text(json.dumps({"pid": pid, "started": started}), encoding="utf-8")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    return Process(name, pid, started, home / f"{name}.log")


def without_airflow(env: Mapping[str, str]) -> dict[str, str]:
    """Returns *env* without Airflow's settings, connections and keys."""
    return {name: value for name, value in env.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}


def find(home: Path, name: str) -> Process | None:
    """Returns the live process of *name* in *home*, or None."""
    process = _recorded_process(home, name)
    return process if process is not None and is_alive(process) else None


def is_alive(process: Process) -> bool:
    """Returns True if *process* itself runs, and not another one with its pid, and is not a zombie."""
    with contextlib.suppress(ChildProcessError):  # it was launched by another process, which reaps it
        os.waitpid(process.pid, os.WNOHANG)
    # A pid is given to another process after a while, and then has another start time.
    return bool(_live_members({_Member(process.pid, process.started)}))


def exists(pid: int) -> bool:
    """Returns True if *pid* runs here and is no zombie."""
    stat = _stats().get(pid)
    return stat is not None and not stat.has_ended


def stop(home: Path, name: str, *, grace_s: float = 15) -> None:
    """Stops the process *name* and all processes that it started, by SIGTERM, and by SIGKILL after *grace_s* seconds.

    Without such a process nothing is done.

    Raises:
        TidemarkError: a process survives SIGKILL.
    """
    process = _recorded_process(home, name)
    if process is None:
        return
    members = _end(process, set(), signal.SIGTERM, grace_s)
    members = _end(process, members, signal.SIGKILL, KILLED_WITHIN_S)
    if members:
        pids = sorted(member.pid for member in members)
        msg = f"{name} was killed, but pids {pids} have not ended; end them by hand, and see {process.log}"
        raise TidemarkError(msg)
    _pid_file(home, name).unlink(missing_ok=True)


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 on which nothing listens now."""
    # Another process may take the port before its user listens; then that one fails, and says so.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float, *, by: Sequence[Process] = (), poll_s: float = POLL_S
) -> None:
    """Returns as soon as *condition* holds.

    Args:
        condition: is polled, the less often the longer the wait.
        what: what is waited for, for the error.
        timeout_s: the longest wait.
        by: the processes whose work is awaited.
        poll_s: the shortest time between two polls.

    Raises:
        TidemarkError: the condition does not hold after *timeout_s*, or one of the processes has died. The message ends
            with the tail of the log of this process, or of the first one.
    """
    begun = time.monotonic()
    while not condition():
        dead = next((process for process in by if not is_alive(process)), None)
        waited_s = time.monotonic() - begun
        if dead or waited_s >= timeout_s:
            problem = f"{dead.name} has died; start it again" if dead else f"timeout after {timeout_s:g} s"
            logged = dead or next(iter(by), None)
            log = f"; the end of {logged.log}:\n{_tail(logged.log)}" if logged else ""
            msg = f"waiting for {what}: {problem}{log}"
            raise TidemarkError(msg)
        pause_s = max(poll_s, min(POLL_PART * waited_s, LONGEST_POLL_S))
        time.sleep(min(pause_s, timeout_s - waited_s))


def _spawn(program: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> int:
    return os.posix_spawn(
        program,
        list(command),
        dict(env),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # The mask above is inherited, and so is SIGPIPE, which Python ignores.
        setsigmask=(),
        setsigdef=DEFERRED | {signal.SIGPIPE},
    )


def _pid_file(home: Path, name: str) -> Path:
    return home / f"{name}.pid.json"


def _recorded_process(home: Path, name: str) -> Process | None:
    return read(
        home,
        _pid_file(home, name).name,
        lambda recorded: Process(name, int(recorded["pid"]), int(recorded["started"]), home / f"{name}.log"),
    )


def _end(process: Process, members: set[_Member], number: signal.Signals, within_s: float) -> set[_Member]:
    """Sends the signal *number* once to *process*, to its family and to other *members*.

    Returns those that still live after *within_s*.
    """
    deadline = time.monotonic() + within_s
    signalled: set[_Member] = set()
    while alive := _live_members(members | signalled | _family(process)):
        for member in alive - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)
        signalled |= alive
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    is_alive(process)  # reaps it
    return alive


def _family(process: Process) -> set[_Member]:
    """Returns the processes in the session of *process* and their descendants, even if *process* itself has died."""
    stats = _stats()
    leader = stats.get(process.pid)
    # The pid belongs to another process now.
    if leader is not None and leader.started != process.started:
        return set()
    session = [pid for pid, stat in stats.items() if stat.session == process.pid]
    # Descendants with a session of their own are found by their parents.
    children = inverted({pid: [stat.parent] for pid, stat in stats.items()})
    return {_Member(pid, stats[pid].started) for pid in reached(session, children)}


def _live_members(members: set[_Member]) -> set[_Member]:
    stats = _stats()
    running = {_Member(pid, stat.started) for pid, stat in stats.items() if not stat.has_ended}
    return members & running


def _stats() -> dict[int, _Stat]:
    """Returns every process of the machine by pid, from /proc/<pid>/stat (proc(5))."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended while we looked
                # The command's name, in brackets, may hold spaces and brackets itself.
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                stats[int(entry.name)] = _Stat(fields[0], *(int(fields[number]) for number in (1, 3, 17, 19)))
    return stats


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
