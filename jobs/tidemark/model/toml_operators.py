"""Reads one operator from its table in a topology file.

docs/topologies.md lists the keys of each kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.registry import KINDS
from tidemark.model.settings.toml_keys import Keys, mistakes_with_each, read_whole
from tidemark.model.settings.value_types import IDENTIFIER
from tidemark.model.tables.catalog import TABLES

RESERVED = frozenset(
    {
        *("source", "partition", "offset", "key", "value", "headers", "deleted", "timestamp_ms", "reason"),
        *("clock_ms", "detail", "sampled", "stamped_ms", "written"),
    }
)
"""Names of columns between a source and an operator."""


def read_operator(
    file: str, name: str, content: Any, *, folder: Path | None
) -> tuple[Operator | None, list[InvalidSpec]]:
    """Reads the operator *name* of *file*, with every mistake in it.

    *content* is its table. Schema files are looked for in *folder*.
    """
    table = content if isinstance(content, dict) else {}
    keys = Keys(file, f"operators.{name}", table)

    def read(keys: Keys) -> Operator:
        kind = KINDS[keys.word("kind", KINDS)]
        stream = keys.name("sub_topology", "status", None)
        return kind.read(keys, {"name": name, "sub_topology": stream}, folder)

    try:
        _refuse_name(file, name, keys)
        keys.word("kind", KINDS)
    except InvalidSpec as error:
        return None, [error, *mistakes_with_each(file, keys.at, table, "kind", KINDS, read)]
    return read_whole(file, keys.at, table, read)


def mistakes_of(name: str, mistakes: Iterable[InvalidSpec]) -> list[InvalidSpec]:
    """Returns the *mistakes* in the table of the operator *name*."""
    at = f"operators.{name}"
    return [mistake for mistake in mistakes if mistake.key == at or mistake.key.startswith(f"{at}.")]


def misshapen(mistakes: Iterable[InvalidSpec]) -> bool:
    """Returns True if a mistake leaves inputs or output columns open."""
    shaping = {"kind"}.union(*(kind.shaping for kind in KINDS.values()))
    keys = (mistake.key.split(".")[2:3] for mistake in mistakes)
    return any(not key or difflib.get_close_matches(key[0], shaping) for key in keys)


def name_mistake(name: str) -> tuple[str, str] | None:
    """Returns why no operator can have *name*, and the remedy.

    None if one can.
    """
    if not IDENTIFIER.fullmatch(name) or name.endswith("_source"):
        return (
            "is not a valid operator name",
            "use a lower-case letter, then lower-case letters, digits and _; not …_source",
        )
    if name in TABLES or name.startswith("hop_") or name in RESERVED:
        return "is reserved for a table or column of Tidemark", "choose another name"
    return None


def _refuse_name(file: str, name: str, keys: Keys) -> None:
    if mistake := name_mistake(name):
        raise InvalidSpec.at(file, keys.at, *mistake)
