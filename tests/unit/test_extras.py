"""Packages that an extra brings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemark.errors import InvalidArgument
from tidemark.model.project.extras import require, untried


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the package of pyspark-client, which has no jars."""
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_the_client_of_spark_is_not_spark(client: Path) -> None:
    with pytest.raises(InvalidArgument, match="pyspark is not installed"):
        require("pyspark")


def test_spark_has_its_jars(client: Path) -> None:
    (client / "jars").mkdir()
    require("pyspark")


@pytest.mark.parametrize(("found", "untried_here"), [("4.1.9", 0), ("4.2.0", 0), ("4.3.0", 1), ("4.10.1", 1)])
def test_a_version_with_which_no_test_ran_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, untried_here: int
) -> None:
    metadata = tmp_path / f"pyspark-{found}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.4\nName: pyspark\nVersion: {found}\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = f"pyspark {found} was not tried; docs/installation.md has what was: 4.0, 4.1, 4.2"
    assert [*untried()] == [said] * untried_here
