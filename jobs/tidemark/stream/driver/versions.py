"""Compares versions: a task works only for a driver of the same."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable

from tidemark.errors import TidemarkError


class VersionMismatch(TidemarkError):
    """Raised by a task whose process has other versions than its driver; the message names both."""


@dataclass(frozen=True)
class Versions:
    """The versions that decide how states are kept and calculated; `tidemark` is a digest of its code."""

    tidemark: str
    python: str
    polars: str
    pyarrow: str
    duckdb: str

    @classmethod
    @cache
    def here(cls) -> Versions:
        """Returns the versions of this process, read once."""
        return cls(_digest(), platform.python_version(), version("polars"), version("pyarrow"), version("duckdb"))

    def refuse_others(self) -> None:
        """Raises VersionMismatch unless this process runs these versions."""
        # How states are kept and calculated depends on these, and each host has an installation of its own.
        here, wanted = asdict(Versions.here()), asdict(self)
        other = [f"{name} {here[name]} instead of {wanted[name]}" for name in wanted if here[name] != wanted[name]]
        if other:
            msg = f"{platform.node()} runs {', '.join(other)}; install the versions of the driver on all hosts"
            raise VersionMismatch(msg)


@cache
def _digest() -> str:
    """Returns a digest of this code, the same in an archive."""
    # Paths differ between a folder and an archive, so only names count.
    code = sorted((file.name, file.read_bytes()) for file in _modules(files("tidemark")))
    return hashlib.sha256(repr(code).encode()).hexdigest()[:12]


def _modules(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _modules(each)
        elif each.name.endswith(".py"):
            yield each
