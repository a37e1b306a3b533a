"""Packages that an extra brings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemark.errors import InvalidArgument
from tidemark.model.project.extras import require


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
