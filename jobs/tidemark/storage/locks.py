"""Makes folders and lock files that belong to one user.

Every user who can open a file, even read-only, can hold flock(2) on it; another user's lock would stop streams and
alerts. So folders have the mode 0700 and lock files 0600, whatever the umask is, and the wait for a lock ends with an
error that names its holder.
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
from tidemark.storage.object_path import ObjectPath

PROBE_S = 0.05


class ForeignOwner(TidemarkError):
    """Raised when a folder or a lock belongs to another user."""


class LockHeld(TidemarkError):
    """Raised when another process holds a lock for too long."""


def own_folder(folder: Path) -> None:
    """Makes *folder* so that only this user may use it; in an object store this does nothing.

    Raises:
        ForeignOwner: the folder belongs to another user.
    """
    # An object store has no owners of folders; its policies protect them.
    if isinstance(folder, ObjectPath):
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    _refuse_unless_ours(folder, status)
    if status.st_mode & 0o777 != 0o700:
        folder.chmod(0o700)


def open_lock(file: Path) -> int:
    """Opens the lock *file*, and makes it if there is none.

    Returns its descriptor. Raises ForeignOwner if the file belongs to another user.
    """
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


def take_lock(lock: int, *, within_s: float) -> bool:
    """Locks *lock* and writes the name of this process into it; returns False if another one holds it *within_s*."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            # flock has no timeout, so a waiter tries again and again.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(PROBE_S)
        else:
            # The lock is valid without the name of its holder: a full disk must not stop a driver here.
            with suppress(OSError):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"pid {os.getpid()} on {platform.node()}".encode(), 0)
            return True


@contextmanager
def locked(file: Path, *, within_s: float) -> Iterator[None]:
    """Holds the lock *file* inside the block.

    Raises:
        LockHeld: another process has held it for *within_s*.
    """
    lock = open_lock(file)
    try:
        if not take_lock(lock, within_s=within_s):
            msg = (
                f"{file}: locked by another process ({holder(lock)}) for more than {within_s:g} s; wait until it ends, "
                "or stop it"
            )
            raise LockHeld(msg)
        yield
    finally:
        os.close(lock)


def holder(lock: int) -> str:
    """Returns the process that holds *lock*, as text for a message.

    The system's list of locks has it, or else the text that the last holder wrote into the file.
    """
    inode = os.fstat(lock).st_ino
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()  # number, kind, advisory, mode, pid, device:inode, from, to; see proc_locks(5)
            if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}") and int(fields[4]) > 0:
                return f"pid {fields[4]} on {platform.node()}"
    return os.pread(lock, 200, 0).decode(errors="replace") or "unknown process"


def _refuse_unless_ours(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        msg = (
            f"{path} belongs to {_name(status.st_uid)}, but Tidemark runs as {_name(os.geteuid())}; "
            "run it as that user, or change the owner (chown)"
        )
        raise ForeignOwner(msg)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
