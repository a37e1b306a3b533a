"""Runs a command and measures all processes that it starts.

`python process_tree.py REPORT COMMAND…` replaces REPORT four times a second, until SIGTERM, which kills the whole tree
by SIGKILL, or until its last process has ended. The last report has `ended`.

It adopts processes whose parent has ended (Linux: subreaper). So the kernel adds the use of each ended or killed
process to it once, and /proc has that of living ones. The kernel forgets the use of an ended process if its parent
ignores SIGCHLD, as Spark's daemon of Python workers does: such a process counts as it was at the last look before.
After SIGTERM it looks once more and then kills: what the processes use from that look to their death is not in the
report.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

EVERY_S = 0.25
TICKS_A_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BLOCK_BYTES = 512
"""Unit of `ru_oublock` in Linux."""
SET_CHILD_SUBREAPER, SET_PARENT_DEATH_SIGNAL = 36, 1
"""Options of prctl(2)."""


@dataclass(frozen=True)
class Use:
    """Use of a process tree from its start.

    `cpu_s`: user and system, s. `bytes_written`: to files, with removed ones, without pipes and sockets. `rss_bytes`:
    now, shared pages once per process; `peak_rss_bytes`: the highest of all looks. `at_s`: monotonic clock.
    `cpu_s_by_thread`: of threads that lived at the end, by name without number.
    """

    cpu_s: float
    bytes_written: int
    rss_bytes: int
    peak_rss_bytes: int
    at_s: float
    ended: bool = False
    status: int | None = None
    cpu_s_by_thread: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ProcessUse:
    """Use of one process, with that of its ended children.

    `parent`: its process. `started`: ticks since the machine's start, because numbers of processes are used again.
    """

    cpu_s: float
    bytes_written: int
    rss_bytes: int
    parent: int
    started: int


def of_process(pid: int) -> ProcessUse:
    """Returns the use of *pid*; raises OSError if it has ended."""
    place = Path(f"/proc/{pid}")
    fields = _stat(place)
    written = (place / "io").read_text().partition("\nwrite_bytes: ")[2].split(maxsplit=1)[0]
    cpu_s, rss_bytes = sum(map(int, fields[11:15])) / TICKS_A_S, int(fields[21]) * PAGE_BYTES
    return ProcessUse(cpu_s, int(written), rss_bytes, int(fields[1]), int(fields[19]))


def cpu_s_by_thread(pids: Sequence[int]) -> dict[str, float]:
    """Returns the CPU of living threads by name, most first, s."""
    by_name: Counter[str] = Counter()
    for place in (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*")):
        with suppress(OSError):
            name = re.sub(r"[-#:\s]*\d+\S*$", "", (place / "comm").read_text().strip())
            by_name[name] += sum(map(int, _stat(place)[11:13]))
    return {name: ticks / TICKS_A_S for name, ticks in by_name.most_common()}


def descendants(pid: int) -> list[int]:
    """Returns the processes below *pid*, with zombies."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            children.setdefault(int(_stat(place)[1]), []).append(int(place.name))
    below = list(children.get(pid, ()))
    for each in below:  # it grows
        below += children.get(each, ())
    return below


def _stat(place: Path) -> list[str]:
    """Returns the fields of `stat` from the state on."""
    # The name before it may have spaces and brackets.
    return (place / "stat").read_text().rpartition(")")[2].split()


def ignores_children(pid: int) -> bool:
    """Returns whether *pid* ignores SIGCHLD."""
    with suppress(OSError):
        ignored = Path(f"/proc/{pid}/status").read_text().partition("\nSigIgn:")[2].split(maxsplit=1)[0]
        return bool(int(ignored, 16) >> (signal.SIGCHLD - 1) & 1)
    return False


class Tree:
    """All processes below this one, ended and living."""

    def __init__(self) -> None:
        self._peak_rss_bytes = 0
        self._forgotten: dict[tuple[int, int], ProcessUse] = {}
        """Processes that the kernel forgets, as at the last look."""

    def use(self) -> Use:
        """Looks at all processes, and returns their use."""
        living = {}
        for pid in descendants(os.getpid()):
            with suppress(OSError):
                use = of_process(pid)
                living[pid, use.started] = use
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        ignoring = {parent for parent in {each.parent for each in living.values()} if ignores_children(parent)}
        ended_unseen = {key: each for key, each in self._forgotten.items() if key not in living}
        self._forgotten = ended_unseen | {key: each for key, each in living.items() if each.parent in ignoring}
        rss_bytes = sum(each.rss_bytes for each in living.values())
        self._peak_rss_bytes = max(rss_bytes, self._peak_rss_bytes)
        counted = (living | self._forgotten).values()
        return Use(
            cpu_s=ended.ru_utime + ended.ru_stime + sum(each.cpu_s for each in counted),
            bytes_written=ended.ru_oublock * BLOCK_BYTES + sum(each.bytes_written for each in counted),
            rss_bytes=rss_bytes,
            peak_rss_bytes=self._peak_rss_bytes,
            at_s=time.monotonic(),
        )

    def drop(self, pid: int) -> None:
        """Drops an ended process that this one has waited for.

        The kernel counts it: its parent ignored SIGCHLD, but ended before it.
        """
        self._forgotten = {key: each for key, each in self._forgotten.items() if key[0] != pid}


def kill_tree() -> None:
    """Kills all processes below this one, and those that they start meanwhile."""
    while below := descendants(os.getpid()):
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(lambda _pid, _status: None)
        time.sleep(0.01)


def _reap(ended: Callable[[int, int], None]) -> None:
    with suppress(ChildProcessError):
        while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
            ended(reaped[0], os.waitstatus_to_exitcode(reaped[1]))


def main(report: Path, command: list[str]) -> int:
    """Runs *command*; returns its exit status, or 137 if SIGTERM ended it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)  # nothing outlives a contest that was killed
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    statuses: dict[int, int] = {}
    tree = Tree()

    def end(pid: int, status: int) -> None:
        statuses[pid] = status
        tree.drop(pid)

    first = os.posix_spawnp(command[0], command, os.environ, setsid=True)
    use = tree.use()
    while not asked and descendants(os.getpid()):
        _write(report, use)
        time.sleep(EVERY_S)
        _reap(end)
        use = tree.use()
    by_thread = cpu_s_by_thread(descendants(os.getpid()))
    use = tree.use()  # what is killed below may die before a parent that ignores SIGCHLD, or after it
    kill_tree()
    _write(report, replace(use, ended=True, status=statuses.get(first), cpu_s_by_thread=by_thread))
    return statuses.get(first, 128 + signal.SIGKILL)


def _write(report: Path, use: Use) -> None:
    """Replaces *report*, so that it is never half written."""
    new = report.with_suffix(".new")
    new.write_text(json.dumps(asdict(use)))
    new.replace(report)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
