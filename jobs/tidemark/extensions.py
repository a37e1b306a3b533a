"""Imports what registers itself in an open list: the modules of a package, and entry points of other packages."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

log = logging.getLogger(__name__)


def import_all(package: str, folders: Iterable[str], *, group: str) -> None:
    """Imports each module of *package*, which lies in *folders*, and each module that is an entry point of *group*.

    An entry point that cannot be imported is logged: what it would have registered is unknown, and is refused by its
    name where it is used.
    """
    for module in iter_modules(folders):
        import_module(f"{package}.{module.name}")
    if not _has_extensions():
        return
    from importlib.metadata import entry_points  # costs 0.1 s

    for point in entry_points(group=group):
        try:
            point.load()
        except Exception:
            log.exception("the entry point %s of %s cannot be imported; repair or uninstall it", point.name, group)


@cache
def _has_extensions() -> bool:
    """Returns whether a package has entry points of Tidemark.

    To read all entry points takes ten times as long as to look for the word in their files.
    """
    files = (file for path in sys.path for file in Path(path).glob("*-info/entry_points.txt"))
    return any("[tidemark." in file.read_text(errors="replace") for file in files)
