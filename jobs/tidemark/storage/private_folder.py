"""Makes folders for temporary files of this process, which others cannot read, and removes those of killed ones."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


def private_folder(prefix: str) -> Path:
    """Makes a folder of this user that ends with this process.

    Folders of *prefix* whose processes were killed are removed: nobody holds their locks any more.
    """
    _remove_unlocked(Path(tempfile.gettempdir()), prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        # The lock is held until the process ends, however it ends.
        if _lock(folder) is not None:
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            return folder


def _lock(folder: Path) -> int | None:
    """Locks *folder*; returns the descriptor that holds the lock, or None if another process has or removed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between its creation and the lock another process may have taken the folder for a leftover.
        if os.path.samestat(os.fstat(descriptor), folder.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_unlocked(parent: Path, prefix: str) -> None:
    """Removes this user's folders in *parent* that no process holds."""
    for folder in parent.glob(f"{prefix}*"):
        if _is_own(folder) and (descriptor := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _is_own(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid()
    except OSError:  # its process has removed it
        return False
