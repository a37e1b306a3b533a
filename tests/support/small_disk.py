"""Mounts a small disk in memory, or skips the test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = 4_096


@dataclass(frozen=True)
class SmallDisk:
    """A small disk that is mounted at the folder *home*."""

    home: Path

    def fill(self, *, but_pages: int = 0) -> None:
        """Leave space for that many pages."""
        with suppress(OSError), (self.home / "full").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * PAGE)
        os.truncate(self.home / "full", (self.home / "full").stat().st_size - but_pages * PAGE)

    def free(self) -> None:
        """Have space again."""
        (self.home / "full").unlink(missing_ok=True)


@contextmanager
def small_disk(home: Path, *, megabytes: int) -> Iterator[SmallDisk]:
    """A disk of *megabytes* at *home* during the `with` block."""
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(home)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield SmallDisk(home)
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)
