"""Builds the wheel once, from the archive of the source."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from packages.fresh import PROJECT, uv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # A build writes a list of files into the checkout, and another process of tests may build at the same time.
    with (PROJECT / "setup.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        uv("build", "--out-dir", str(folder), str(PROJECT))
    (built,) = folder.glob("*.whl")
    return built
