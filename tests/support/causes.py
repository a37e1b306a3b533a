"""Collects the causes that `tidemark why` can find."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages

from tidemark import why
from tidemark.sla import watched_why
from tidemark.why.evidence.findings import Cause


def known_causes() -> set[Cause]:
    """Returns the causes that the files of `why/`, and those of watched tables, declare."""
    names = [watched_why.__name__, *(module.name for module in walk_packages(why.__path__, f"{why.__name__}."))]
    for name in names:
        import_module(name)
    return {value for name in names for value in vars(sys.modules[name]).values() if isinstance(value, Cause)}
