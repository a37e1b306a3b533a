"""Lets one process do the work of several processes of a host.

Purpose: the imports that the work needs cost more than the work itself.
How it works: each process puts its work, pickled, into a folder of its user, and waits for the folder's lock. The first
that gets the lock does its own work and then all work that waits there, and leaves an answer for each. The other
processes find their answers when they get the lock in turn. If there is no answer, because the working process has died
or could not read the work, they do the work themselves.
Known limitation: a process stops waiting after PATIENCE_S, so longer work may be done twice.
"""

from __future__ import annotations

import copyreg
import logging
import os
import pickle
import traceback
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidemark.errors import TidemarkError
from tidemark.storage.location import put_once, replace
from tidemark.storage.locks import ForeignOwner, LockHeld, locked, own_folder

log = logging.getLogger(__name__)
PATIENCE_S = 300.0
"""Longest wait for the working process, before a process works itself."""
WORK, ANSWER = ".work", ".answer"


class WorkFailed(TidemarkError):
    """Raised when work failed in another process; the message is the traceback there."""


def _proxy(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Topologies have many mapping proxies, which Python does not pickle.
copyreg.pickle(MappingProxyType, lambda proxy: (_proxy, (dict(proxy),)))


def share(work: Callable[[], None], folder: Path, *, patience_s: float = PATIENCE_S) -> None:
    """Does *work* in this process or in another one that shares *folder*.

    If this process gets the lock of *folder*, it also does the work of others there.

    Args:
        work: can be pickled, and done twice.
        folder: the shared folder, of this user alone.
        patience_s: longest wait for another process.

    Raises:
        WorkFailed: another process did the work, and it failed. The error of *work* is raised if this process did it.
    """
    request = folder / f"{os.getpid()}-{uuid.uuid4().hex}{WORK}"
    answer = request.with_suffix(ANSWER)
    try:
        _ask(work, request)
    except (ForeignOwner, OSError) as error:
        log.warning("%s; this process does its work alone", error)
        work()
        return
    try:
        with alone(folder, within_s=patience_s):
            if not answer.exists():
                request.unlink(missing_ok=True)
                _do_all(work, folder)
                return
        if failure := answer.read_text(encoding="utf-8"):
            raise WorkFailed(failure)
    except LockHeld as error:
        log.warning("%s; this process does its work beside that one", error)
        request.unlink(missing_ok=True)
        work()
    finally:
        for file in (request, answer):
            file.unlink(missing_ok=True)


def alone(folder: Path, *, within_s: float = 0.0) -> AbstractContextManager[None]:
    """Returns a context in which no other process that shares *folder* works.

    Raises:
        LockHeld: another process has worked for *within_s*.
    """
    return locked(folder / "lock", within_s=within_s)


def is_worked_on(folder: Path) -> bool:
    """Returns True if a process that shares *folder* works now."""
    try:
        with alone(folder):
            return False
    except (FileNotFoundError, ForeignOwner):  # nobody has worked yet, or nobody can share
        return False
    except LockHeld:
        return True


def _ask(work: Callable[[], None], request: Path) -> None:
    """Writes *work* to the file *request*; raises ForeignOwner if another user may have made its folder."""
    # The files in the folder are unpickled, so no other user may put one there.
    if request.parent.is_symlink():
        msg = f"{request.parent} must be a folder, and is a symbolic link"
        raise ForeignOwner(msg)
    own_folder(request.parent)
    put_once(request, pickle.dumps(work))


def _do_all(work: Callable[[], None], folder: Path) -> None:
    """Does *work* and all work of other processes that waits in *folder*."""
    failure = _failure(work)
    # Other processes may ask as long as this one has the lock.
    while waiting := [*folder.glob(f"*{WORK}")]:
        for file in waiting:
            _do_waiting(file)
    # The failures of other processes are in their answers; this process raises only its own.
    if failure is not None:
        raise failure


def _do_waiting(file: Path) -> None:
    """Does the work in *file* and answers, if its process lives."""
    try:
        pickled = file.read_bytes()
        file.unlink()
    except FileNotFoundError:  # its process has lost patience
        return
    if not _lives(int(file.name.partition("-")[0])):
        return
    try:
        work = pickle.loads(pickled)
    except Exception:
        log.exception("%s cannot be read here, and is left to the process that asked for it", file.name)
        return
    failure = _failure(work)
    text = "" if failure is None else "".join(traceback.format_exception(failure))
    replace(file.with_suffix(ANSWER), text)


def _failure(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
