"""Folders and lock files of one user: another user who held a lock would stop streams and alerts.

Every user who can open a file, even read-only, can hold flock(2) on it. So folders have the mode 0700 and lock files
0600, whatever the umask is, and the wait for a lock ends with an error that names its holder.
"""

from __future__ import annotations

import fcntl
import os
import platform
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidemark.errors import TidemarkError
from tidemark.object_path import ObjectPath

PROBE_S = 0.05


class NotOurs(TidemarkError):
    """Raised when a folder or a lock belongs to another user."""


class LockHeld(TidemarkError):
    """Raised when another process holds a lock for longer than one waits for it."""


def own_folder(folder: Path) -> None:
    """Make *folder* if there is none, and make it this user's alone; raises NotOurs.

    In an object store there is nothing to do.
    """
    if isinstance(folder, ObjectPath):
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    _refuse_unless_ours(folder, found)
    if found.st_mode & 0o777 != 0o700:
        folder.chmod(0o700)


def opened(file: Path) -> int:
    """A descriptor of the lock *file*, which is made if there is none; raises NotOurs."""
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        _refuse_unless_ours(file, file.stat())
        raise
    try:
        _refuse_unless_ours(file, os.fstat(lock))
        os.fchmod(lock, 0o600)
    except BaseException:
        os.close(lock)
        raise
    return lock


def taken(lock: int, *, within_s: float) -> bool:
    """Whether *lock* could be had within so many seconds; it then says which process has it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(PROBE_S)
        else:
            with suppress(OSError):  # a full disk keeps nobody from what a lock is for
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"pid {os.getpid()} on {platform.node()}".encode(), 0)
            return True


@contextmanager
def locked(file: Path, *, within_s: float) -> Iterator[None]:
    """Hold the lock *file* meanwhile; raises LockHeld when another process has it for *within_s*."""
    lock = opened(file)
    try:
        if not taken(lock, within_s=within_s):
            msg = (
                f"{file}: one process at a time, and for {within_s:g} s another one has held this lock "
                f"({holder(lock)}); wait for that one to end, or end it"
            )
            raise LockHeld(msg)
        yield
    finally:
        os.close(lock)


def holder(lock: int) -> str:
    """Who holds *lock*: by the system where that knows, else what the process that had it last wrote into it."""
    inode = os.fstat(lock).st_ino
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # number, kind, advisory, mode, pid, device:inode, from, to; see proc_locks(5)
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
                return f"pid {fields[4]} on {platform.node()}"
    return os.pread(lock, 200, 0).decode(errors="replace") or "nobody knows which"


def _refuse_unless_ours(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        msg = (
            f"{path} must belong to the user who runs Tidemark, {_name(os.geteuid())}, and belongs to "
            f"{_name(found.st_uid)}; run as that user, or change its owner (chown)"
        )
        raise NotOurs(msg)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
