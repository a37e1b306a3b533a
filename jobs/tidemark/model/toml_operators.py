"""Reads one operator from its table in a topology file.

docs/topologies.md lists the keys of each kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tidemark.errors import InvalidSpec
from tidemark.model.kinds import operator
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import MistakenKey, TableForm, optional, required
from tidemark.model.settings.value_types import IDENTIFIER
from tidemark.model.tables.catalog import TABLES

KIND = required(
    operator.KIND,
    value_types.word(KINDS),
    example='"source"',
    meaning="what the operator does; each kind has keys of its own",
)
SUB_TOPOLOGY = optional(
    "sub_topology",
    value_types.name(),
    example='"status"',
    without="that of an operator that is connected with it, or else the name of the query's first source",
    meaning="the name of the streaming query that runs it",
)
RESERVED = frozenset(
    {
        *("source", "partition", "offset", "key", "value", "headers", "deleted", "timestamp_ms", "reason"),
        *("clock_ms", "detail", "sampled", "stamped_ms", "written"),
    }
)
"""Names of columns between a source and an operator."""


@cache
def operator_form() -> TableForm:
    """Returns the table of an operator.

    The table is made when it is first needed: modules with kinds of other packages import modules that import this one.
    """
    return TableForm(keys=(KIND, SUB_TOPOLOGY), kinds=tuple(kind.table_kind() for kind in KINDS.values()))


def read_operator(
    file: str, name: str, content: object, *, folder: Path | None
) -> tuple[Operator | None, list[InvalidSpec]]:
    """Reads the operator *name* of *file*, with every mistake in it.

    *content* is the operator's table. Schema files are looked for in *folder*. If the table has mistakes, the operator
    has valid values in their place, and only serves to find further mistakes; it is None if it cannot be made even so.
    """
    form, at = operator_form(), f"operators.{name}"
    values = form.read(file, at, content, folder=folder)
    if mistake := name_mistake(name):
        return None, [InvalidSpec.at(file, at, *mistake), *values.mistakes]
    if values.kind is None:
        return None, values.mistakes
    known = values.repaired(form) if values.mistakes else values
    try:
        return KINDS[values.kind.name].read(known, {"name": name, "sub_topology": known[SUB_TOPOLOGY]}), values.mistakes
    except InvalidSpec as error:
        return None, values.mistakes or [error]
    except MistakenKey:
        return None, values.mistakes


def mistakes_of(name: str, mistakes: Iterable[InvalidSpec]) -> list[InvalidSpec]:
    """Returns the *mistakes* in the table of the operator *name*."""
    at = f"operators.{name}"
    return [mistake for mistake in mistakes if mistake.key == at or mistake.key.startswith(f"{at}.")]


def misshapen(mistakes: Iterable[InvalidSpec]) -> bool:
    """Returns True if *mistakes* leave the inputs or the output columns of an operator unknown."""
    shaping = {"kind"}.union(*(kind.shaping for kind in KINDS.values()))
    keys = (mistake.key.split(".")[2:3] for mistake in mistakes)
    return any(not key or difflib.get_close_matches(key[0], shaping) for key in keys)


def name_mistake(name: str) -> tuple[str, str] | None:
    """Returns why no operator can have *name*, and the remedy; None if an operator can."""
    if not IDENTIFIER.fullmatch(name) or name.endswith("_source"):
        return (
            "is not a valid operator name",
            "use a lower-case letter, then lower-case letters, digits and _; not …_source",
        )
    if name in TABLES or name.startswith("hop_") or name in RESERVED:
        return "is reserved for a table or column of Tidemark", "choose another name"
    return None
