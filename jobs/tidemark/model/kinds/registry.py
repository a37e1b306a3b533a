"""The kinds of operator in a topology file, by their word. The modules of this folder register theirs."""

from __future__ import annotations

from typing import TypeVar

from tidemark.extensions import OpenList
from tidemark.model.kinds.operator import DeclaredOperator

K = TypeVar("K", bound=DeclaredOperator)
KINDS: OpenList[type[DeclaredOperator]] = OpenList(
    "operator kind", group="tidemark.operators", package="tidemark.model.kinds"
)
"""The kinds by their word in a topology file."""


def register(kind: type[K]) -> type[K]:
    """Adds the class of a *kind* to the list, and returns it.

    The step of Tidemark's own kinds is in the module of `stream/operate` that has the same name. The module of another
    package has its step (`stream.updates.step.OperatorStep`) beside the class.

    Raises:
        ValueError: another kind has the word, or it reads or writes what lies outside of its sub-topology.
    """
    if kind.is_source or kind.hands_out:
        msg = f"the operator kind {kind.kind} reads or writes outside of its sub-topology, which no added kind can"
        raise ValueError(msg)
    KINDS.register(kind.kind, kind)
    return kind
