"""Writes files that only this user may read."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """Replaces *file* by a new one with *text*, of mode 0600."""
    # An existing file would keep its mode, by which others may be able to read it. A new file has its mode from the
    # first byte on, and O_EXCL refuses a link that another user has put there.
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
