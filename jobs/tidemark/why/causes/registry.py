"""Finds the rules in the files of this folder.

To add a finding, add a file with a function that has the decorator `rule`. The walk calls each rule after its own
search.
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
"""Yields the reasons why an operator, of which it gets the name, gives no results."""
_RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Registers a function of this folder as a rule; a decorator."""
    _RULES[f"{function.__module__}.{function.__name__}"] = function
    return function


def rules() -> tuple[Rule, ...]:
    """Returns the rules of this folder, ordered by file and name."""
    for module in iter_modules(causes.__path__):
        import_module(f"{causes.__name__}.{module.name}")
    return tuple(_RULES[name] for name in sorted(_RULES))
