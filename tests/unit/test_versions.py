"""A task works only for a driver of the same versions."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tidemark.model.project.files import CHECKOUT
from tidemark.storage.delta.format import VERSION
from tidemark.storage.library import archive
from tidemark.stream.driver.versions import VersionMismatch, Versions


def test_a_task_of_the_same_versions_works() -> None:
    Versions.here().refuse_others()


def test_one_of_others_is_refused_and_names_both() -> None:
    here = Versions.here()
    driver = replace(here, polars="0.1", python="2.7.18")
    with pytest.raises(VersionMismatch) as refused:
        driver.refuse_others()
    assert f"python {here.python} instead of 2.7.18, polars {here.polars} instead of 0.1" in str(refused.value)


def test_code_in_an_archive_is_the_same_version(tmp_path: Path) -> None:
    ask = "from tidemark.stream.driver.versions import Versions; print(Versions.here().tidemark)"
    shipped = archive(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(shipped)!r}); {ask}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == Versions.here().tidemark


def test_the_code_has_the_version_of_its_package() -> None:
    assert tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"] == VERSION
