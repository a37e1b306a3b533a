"""Reads scripts of SQL."""

from __future__ import annotations


def statements_of(script: str) -> list[str]:
    """Returns the statements of a *script* whose statements end with `;` at the end of a line, without comments."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    return [text.strip() for text in "\n".join(lines).split(";\n") if text.strip(" ;\n")]
