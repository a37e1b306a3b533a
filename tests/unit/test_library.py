"""The library as an archive."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tidemark.model.project.files import CHECKOUT, Project
from tidemark.storage import library
from tidemark.storage.library import archive, driver_archive

pytestmark = pytest.mark.slow


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


def test_a_wheel_has_every_file_of_the_package() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = ["*.py", *settings["tidemark"]]
    files = [file.relative_to(library.PACKAGE) for file in library._files(library.PACKAGE)]
    assert [file for file in files if not any(map(file.match, patterns))] == []


def test_a_drivers_archive_is_a_wheel_and_a_project(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("topologies/clicks.toml", "topologies/schemas/click.avsc", "expectations/slas.toml", "channels.toml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    file = driver_archive(tmp_path, Project(home))
    with zipfile.ZipFile(file) as zipped:
        of_project = {name: zipped.read(name).decode() for name in zipped.namelist() if name.startswith("project/")}
        zipped.extractall(tmp_path / "container")
    assert of_project == {
        "project/topologies/clicks.toml": "topologies/clicks.toml",
        "project/topologies/schemas/click.avsc": "topologies/schemas/click.avsc",
        "project/expectations/slas.toml": "expectations/slas.toml",
    }
    code = "from tidemark.model.project.files import CHECKOUT, Project; "
    code += "print(Project.here().topologies, (CHECKOUT / 'expectations' / 'contract.json').is_file())"
    env = {"PYTHONPATH": "container", "TIDEMARK_PROJECT": "container/project"}
    command = [sys.executable, "-S", "-c", code]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [f"{tmp_path}/container/project/topologies", "True"]
