"""Which versions a process runs: a task works for a driver of the same ones only."""

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


class OtherVersions(TidemarkError):
    """Raised by a task whose process runs other versions than its driver; it names both."""


@dataclass(frozen=True)
class Versions:
    """The versions of what decides how states are kept and calculated; `tidemark` is a digest of its code."""

    tidemark: str
    python: str
    polars: str
    pyarrow: str
    duckdb: str

    @classmethod
    def here(cls) -> Versions:
        """Those of this process."""
        return cls(_digest(), platform.python_version(), version("polars"), version("pyarrow"), version("duckdb"))

    def refuse_others(self) -> None:
        """Raise OtherVersions unless this process runs these versions."""
        here, wanted = asdict(Versions.here()), asdict(self)
        other = [f"{name} {here[name]} instead of {wanted[name]}" for name in wanted if here[name] != wanted[name]]
        if other:
            msg = f"{platform.node()} runs {', '.join(other)}; give all hosts the versions of the driver"
            raise OtherVersions(msg)


@cache
def _digest() -> str:
    """Tells this code from any other, whether it lies in a folder or in an archive."""
    code = sorted((file.name, file.read_bytes()) for file in _modules(files("tidemark")))
    return hashlib.sha256(repr(code).encode()).hexdigest()[:12]


def _modules(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _modules(each)
        elif each.name.endswith(".py"):
            yield each
