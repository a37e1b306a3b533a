"""Reads TOML files."""

from __future__ import annotations

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
