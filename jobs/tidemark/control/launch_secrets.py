"""Leaves secrets for a driver in a private file.

Only its user may read the file. A launcher writes it into the stream's control folder; the driver reads and
removes it when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tidemark.control.private_file import write_private
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
    write_private(file, json.dumps(dict(secrets)))
    return file


def forget(home: Path) -> None:
    """Removes all such files in *home*."""
    for file in home.glob(f"{_PREFIX}*.json"):
        file.unlink(missing_ok=True)
