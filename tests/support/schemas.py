"""Compares the JSON Schemas of files with their parser."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tidemark.cli.outside.file_schemas import schema_of
from tidemark.errors import InvalidSpec
from tidemark.model.settings.toml_keys import observed


@cache
def validator(file: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(file))


def is_declared(mistake: InvalidSpec) -> bool:
    """Returns True if `Keys` itself found *mistake*.

    These are unknown and missing keys, types, forms and words.

    Other mistakes compare a value with other keys, operators, files or the world.
    """
    by = traceback.extract_tb(mistake.__traceback__)[-2]
    return by.filename.endswith("toml_keys.py") and by.name != "instant_ms"


def disagreement(file: str, content: Any, parse: Callable[[Any], object]) -> str | None:
    """Returns how schema and parser differ about *content*; None: they agree."""
    refused = None
    with observed() as reading:
        try:
            parse(content)
        except InvalidSpec as error:
            refused = str(error)
    errors = [f"{error.json_path}: {error.message}" for error in validator(file).iter_errors(content)]
    # Others follow from the parser's repairs of a mistake.
    lines = (refused or "").splitlines()
    declared = [str(mistake) for mistake in reading.mistakes if is_declared(mistake) and str(mistake) in lines]
    if declared and not errors:
        return f"the schema accepts {content}, the parser refuses it: {declared}"
    if errors and refused is None:
        return f"the schema refuses {content}: {errors}; the parser accepts it"
    return None
