"""Open lists of kinds, each of which is one module: of Tidemark, or of another package with an entry point."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
log = logging.getLogger(__name__)


class OpenList(Mapping[str, T]):
    """Kinds by name, in the order of their names.

    The first look at the list imports every module of *package* (None: its kinds are registered already), and every
    module that an entry point of *group* names. These register their kinds. An entry point that cannot be imported is
    logged: its kinds are unknown then, and refused by name where they are used.

    Args:
        what: a kind of the list, for errors.
        group: of the entry points.
        package: the full name of the package.
    """

    def __init__(self, what: str, *, group: str, package: str | None = None) -> None:
        self._what, self._group, self._package = what, group, package
        self._kinds: dict[str, T] = {}
        self._is_complete = self._is_importing = False
        self._lock = RLock()

    def register(self, name: str, kind: T) -> T:
        """Adds *kind* to the list, and returns it.

        Raises:
            ValueError: another kind has the name.
        """
        if name in self._kinds:
            msg = f"two modules register the {self._what} {name}: rename one"
            raise ValueError(msg)
        self._kinds[name] = kind
        return kind

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> Mapping[str, T]:
        if not self._is_complete:
            # Other threads wait; a module that is imported here may look at the list, as far as it is.
            with self._lock:
                if not (self._is_complete or self._is_importing):
                    self._is_importing = True
                    try:
                        self._import()
                    finally:
                        self._is_importing = False
                    self._kinds = dict(sorted(self._kinds.items()))
                    self._is_complete = True
        return self._kinds

    def _import(self) -> None:
        found = find_spec(self._package) if self._package else None
        for module in iter_modules(found.submodule_search_locations if found else ()):
            import_module(f"{self._package}.{module.name}")
        for point in entry_points_of(self._group):
            try:
                point.load()
            except Exception:
                log.exception("the entry point %s of %s cannot be imported; repair or uninstall it", point, self._group)


def entry_points_of(group: str) -> Collection[EntryPoint]:
    """Returns the entry points of *group*, of all installed packages."""
    if not _has_entry_points():
        return ()
    from importlib.metadata import entry_points  # costs 0.1 s

    return entry_points(group=group)


@cache
def _has_entry_points() -> bool:
    """Returns whether a package has entry points of Tidemark's open lists.

    To read all entry points takes ten times as long as to look for the word in their files.
    """
    files = (file for path in sys.path for file in Path(path).glob("*-info/entry_points.txt"))
    return any("[tidemark." in file.read_text(errors="replace") for file in files)
