"""Parses each file of the product once for all tests.

The trees live as long as the process.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Returns all syntax nodes of the file, from the outside in."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def top_level(path: Path) -> list[ast.stmt]:
    """Returns the statements of the file that are in no other one."""
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    return module.body
