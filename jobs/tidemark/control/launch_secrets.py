"""Leaves secrets for a driver in a private file.

Only its user may read the file. A launcher writes it into the stream's control folder; the driver reads and
removes it when it starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tidemark.storage.locks import own_folder

_PREFIX = "secrets_"


def name_of(launch_id: str) -> str:
    """Returns the name of the file for the driver of *launch_id*."""
    return f"{_PREFIX}{launch_id}.json"


def leave(home: Path, launch_id: str, secrets: Mapping[str, str]) -> Path:
    """Writes *secrets* for the driver of *launch_id* into *home*.

    Files that drivers before it have not removed are removed.
    """
    own_folder(home)
    forget(home)
    file = home / name_of(launch_id)
    # The mode counts from the first byte, so the file is new and never world-readable.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(dict(secrets), opened)
    return file


def forget(home: Path) -> None:
    """Removes all such files in *home*."""
    for file in home.glob(f"{_PREFIX}*.json"):
        file.unlink(missing_ok=True)
