"""Finds the rules in the files of this folder.

A file with a rule is all that a new finding needs: the walk asks each rule after its own search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias

from tidemark.why import causes
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.evidence.snapshot import Scene

Rule: TypeAlias = Callable[[Scene, str], Iterator[WhyFinding]]
"""Yields reasons why the operator of a name gives no results."""
_RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Registers a function of this folder, as a decorator."""
    _RULES[f"{function.__module__}.{function.__name__}"] = function
    return function


def rules() -> tuple[Rule, ...]:
    """Returns the rules of this folder, ordered by file and name."""
    for module in iter_modules(causes.__path__):
        import_module(f"{causes.__name__}.{module.name}")
    return tuple(_RULES[name] for name in sorted(_RULES))
