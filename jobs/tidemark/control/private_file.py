"""Writes files that only this user may read."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Replaces *file* by a new one with *text*, of mode 0600."""
    # An older file would keep its mode, which others may be able to read. The mode of a new one counts from its first
    # byte, and O_EXCL refuses a link that another user has put in its place.
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
