"""Measures the CPU, memory and disk space that a driver uses.

CPU and memory are read from /proc, where there is one. A driver is its Python process, the JVM beside it, and all that
these started.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tidemark.graph import inverted, reached
from tidemark.selection import present
from tidemark.storage.object_path import ObjectPath

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
SHARED_S = 10.0
"""Time for which a measurement serves all streams of a process."""
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Usage:
    """Measures the driver of the process *pid*. CPU is counted from one measurement to the next."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._was: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self._newest: tuple[float, dict[str, object]] = (0.0, {})

    def now(self) -> dict[str, object]:
        """Returns the columns of `heartbeats` about CPU and memory, up to SHARED_S old, null if the host has none."""
        with self._lock:
            measured_s, newest = self._newest
            # The first measurement has no CPU.
            if newest.get("cpu_share") is None or time.monotonic() - measured_s >= SHARED_S:
                newest = self._measure()
                self._newest = time.monotonic(), newest
            return newest

    def _measure(self) -> dict[str, object]:
        processes = dict(_processes())
        if self._pid not in processes:
            return {}
        parent = processes[self._pid].parent
        # PySpark's JVM starts the Python process when spark-submit runs it, and then is its parent.
        root = parent if parent in processes and processes[parent].name == "java" else self._pid
        cpu_s, memory_bytes = 0.0, 0
        # Spark's Python workers are descendants of the JVM, so the whole tree counts.
        children = inverted({pid: [process.parent] for pid, process in processes.items()})
        for pid in reached([root], children):
            cpu_s += processes[pid].cpu_s
            memory_bytes += processes[pid].memory_bytes
        return {"cpu_share": self._share(cpu_s), "memory_bytes": memory_bytes, "memory_free_bytes": _free_bytes()}

    def _share(self, cpu_s: float) -> float | None:
        """Returns the CPU seconds per second since the last call, or None at the first."""
        # A set wall clock must not change the share.
        at_s = time.monotonic()
        was, self._was = self._was, (at_s, cpu_s)
        if was is None or at_s <= was[0]:
            return None
        # A process that ended takes its CPU time along, so the sum may fall.
        return max(0.0, cpu_s - was[1]) / (at_s - was[0])


@cache
def usage_of(pid: int) -> Usage:
    """Returns the Usage of the process *pid*, which its streams share."""
    return Usage(pid)


class _Process:
    def __init__(self, stat: str) -> None:
        # A process name may contain spaces and parentheses.
        name, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        self.name, self.parent = name, int(fields[1])
        self.cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        self.memory_bytes = int(fields[21]) * _PAGE


def _processes() -> Iterator[tuple[int, _Process]]:
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            yield int(stat.parent.name), _Process(stat.read_text(encoding="utf-8", errors="replace"))
        except (OSError, IndexError):  # it has just ended
            continue


def _free_bytes() -> int | None:
    """Returns the bytes of memory that the driver may use in addition, or None if the host does not report them."""
    # A container may have less than its host.
    free = present((_free_of_host(), _free_of_container()))
    return min(free, default=None)


def _free_of_host() -> int | None:
    try:
        lines = (PROC / "meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    # /proc/meminfo is in KiB.
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("MemAvailable:")), None)


def _free_of_container() -> int | None:
    try:
        limit, used = ((CGROUP / name).read_text(encoding="utf-8").strip() for name in ("memory.max", "memory.current"))
        cache = (CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    # An unlimited cgroup has `max`.
    if not limit.isdigit():
        return None
    # The kernel frees the page cache of inactive files when memory is needed.
    given_back = sum(int(line.split()[1]) for line in cache if line.startswith("inactive_file "))
    return max(0, int(limit) - int(used) + given_back)


def bytes_in(folder: Path) -> int | None:
    """Returns the bytes of the files under *folder*."""
    # Each look costs a request in an object store.
    if isinstance(folder, ObjectPath):
        return None
    total, folders = 0, [str(folder)]
    while folders:
        try:
            entries = [*os.scandir(folders.pop())]
        except OSError:  # it has just been removed, or was never made
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat().st_size
            except OSError:  # it has just been removed
                continue
    return total
