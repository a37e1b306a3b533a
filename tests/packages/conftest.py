"""Builds the wheel once, from the archive of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages.fresh import PROJECT, uv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--out-dir", str(folder), str(PROJECT))
    (built,) = folder.glob("*.whl")
    return built
