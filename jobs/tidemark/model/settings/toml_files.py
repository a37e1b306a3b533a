"""Reads TOML files, and writes texts in them."""

from __future__ import annotations

import json
import tomllib
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


def toml_text(text: str) -> str:
    """Returns *text* as TOML has it, as readable as it can be.

    >>> print(toml_text('{"a": 1}'), toml_text("it's"))
    '{"a": 1}' "it's"
    """
    if "'" in text or not text.isprintable():
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"'{text}'" if '"' in text or "\\" in text else f'"{text}"'
