"""Hands secrets to a driver in a file that only its user may read.

Whoever launches a driver writes the file into the stream's control folder. The driver reads it when it starts, and
removes it.
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
    """Writes *secrets* for the driver of *launch_id* into *home*, and removes what earlier drivers have left there."""
    own_folder(home)
    forget(home)
    file = home / name_of(launch_id)
    write_private(file, json.dumps(dict(secrets)))
    return file


def forget(home: Path) -> None:
    """Removes all files with secrets in *home*."""
    for file in home.glob(f"{_PREFIX}*.json"):
        file.unlink(missing_ok=True)
