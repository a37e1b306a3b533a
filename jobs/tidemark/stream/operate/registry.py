"""Maps each class of operator, into which a topology file is read, to the step that runs it.

The step of a kind is in the module of this folder that has the kind's name. If another package adds a kind, its step is
in the same module as its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, get_args

from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.stream.updates.step import OperatorStep


def _steps() -> Iterator[tuple[type[Operator], type[OperatorStep[Any]]]]:
    """Yields each class of operator with its step."""
    for kind in KINDS.values():
        module = import_module(kind.__module__.replace("tidemark.model.kinds.", "tidemark.stream.operate."))
        for step in vars(module).values():
            is_step = isinstance(step, type) and issubclass(step, OperatorStep)
            if is_step and step.__module__ == module.__name__:
                # The base names the class that it runs: MapStep is a KeyedStep[Map].
                (operator,) = get_args(step.__orig_bases__[0])
                if isinstance(operator, type):
                    yield operator, step


STEPS: Mapping[type[Operator], type[OperatorStep[Any]]] = MappingProxyType(dict(_steps()))


def step_of(operator: Operator) -> type[OperatorStep[Any]]:
    """Returns the step of the kind of *operator*."""
    return STEPS[type(operator)]
