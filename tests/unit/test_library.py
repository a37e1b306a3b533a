"""The library as an archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.storage import library
from tidemark.storage.library import archive


def test_archived_code_is_imported_with_its_neighbours(tmp_path: Path) -> None:
    file = archive(tmp_path)
    code = "import tidemark.clock, importlib.resources as r; print(tidemark.clock.__file__, "
    code += "r.files('tidemark').joinpath('views', 'latency_by_hour.sql').is_file())"
    command = [sys.executable, "-S", "-c", code]
    ran = subprocess.run(command, env={"PYTHONPATH": str(file)}, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [f"{file}/tidemark/clock.py", "True"]


def test_the_same_code_makes_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "elsewhere" / "tidemark"
    shutil.copytree(library.PACKAGE, copied)  # other times of modification and perhaps other compiled files
    first = archive(tmp_path / "a")
    monkeypatch.setattr(library, "PACKAGE", copied)
    second = archive(tmp_path / "b")
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())
    (copied / "clock.py").write_text("changed = True\n")
    assert archive(tmp_path / "b").name != second.name
    assert second.exists()  # a running driver still hands it out
