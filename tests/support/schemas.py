"""Validates files by their JSON Schemas."""

from __future__ import annotations

from functools import cache

from jsonschema import Draft202012Validator

from tidemark.cli.export.file_schemas import schema_of


@cache
def validator(file: str) -> Draft202012Validator:
    """Returns the validator of a kind of file, such as `slas`."""
    return Draft202012Validator(schema_of(file))
