"""Reads TOML files, and suggests the right word for a wrong one."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tidemark.errors import InvalidSpec


def read_toml(path: Path) -> dict[str, Any]:
    """Reads the TOML file at *path*.

    Raises:
        InvalidSpec: it is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec.at(
            path.name, "file", f"is not valid TOML: {error}", "correct the line that it names"
        ) from error


def suggestion_of(word: str, words: Collection[str], what: str) -> str:
    """Returns the remedy for *word*, which is none of *words*.

    It is the nearest one, or all *what* there are.

    >>> suggestion_of("ownr", ["owner", "subject"], "keys"), suggestion_of("colour", ["owner", "subject"], "keys")
    ('did you mean owner?', 'known keys: owner, subject')
    """
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else f"known {what}: {', '.join(sorted(words))}"
