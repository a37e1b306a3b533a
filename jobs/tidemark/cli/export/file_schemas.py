"""Derives JSON Schemas of files from the declarations of their keys.

A schema does not compare values of several keys, or names with other tables: `tidemark check` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidemark.model import topology_keys, watched
from tidemark.model.project import connections, registries
from tidemark.model.project.layout import WATCH
from tidemark.model.settings.declared_tables import Key
from tidemark.model.settings.value_types import IDENTIFIER, Form
from tidemark.model.slas import calendars, channel_spec, sla_keys, sla_spec
from tidemark.model.toml_operators import operator_form
from tidemark.model.topology_keys import CALENDARS, OPERATORS
from tidemark.testing import file_format

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(file: str) -> Form:
    """Returns the JSON Schema of files of one kind, one of FORMS."""
    return {"$schema": DIALECT, "title": f"Tidemark: {file}", **FORMS[file]()}


def _topology_file() -> Form:
    """Returns the form of a file of a topology."""
    form = topology_keys.FORM.schema
    operators = {OPERATORS.name: {**OPERATORS.schema, **_tables(operator_form().schema)}}
    return {**form, "properties": {**form["properties"], **operators, **_connections()}}


def _connections() -> Mapping[str, Form]:
    """Returns the forms of the tables of clusters and registries, by their keys."""
    named = ((connections.KAFKA, connections.CLUSTER), (connections.REGISTRY, registries.FORM))
    return {key.name: {**key.schema, **_tables(form.schema)} for key, form in named}


def _tables(form: Form) -> Form:
    """Returns the form of tables by names."""
    return {"type": "object", "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"}, "additionalProperties": form}


def _connection_file() -> Form:
    """Returns the form of a file with the clusters and registries of a project."""
    return {"type": "object", "properties": _connections(), "additionalProperties": False}


def _sla_file() -> Form:
    """Returns the form of a file of SLAs."""
    sla = sla_keys.form().schema
    one = {
        "type": "object",
        "minProperties": 1,
        "properties": {key.name: _table_or(sla, key) for key in sla_spec.OF_TOPOLOGIES},
        "additionalProperties": sla,
        "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"},
    }
    of_all = sla_keys.MAINTENANCE
    named = {
        of_all.name: _table_or(one, of_all),
        CALENDARS: _tables(calendars.FORM.schema),
        WATCH: _watched_tables(),
    }
    return {"type": "object", "properties": named, "additionalProperties": one}


def _watched_tables() -> Form:
    """Returns the form of the table of watched tables: sets of them, and SLAs, whose owner a set may name."""
    form, of_all = sla_keys.form(), sla_keys.MAINTENANCE
    keys = tuple(replace(key, is_required=False) if key is sla_keys.OWNER else key for key in form.keys)
    either = {
        "if": {"required": [watched.TABLES.name], "not": {"required": [sla_keys.SUBJECT.name]}},
        "then": watched.FORM.schema,
        "else": replace(form, keys=keys).schema,
    }
    return {**_tables(either), "minProperties": 1, "properties": {of_all.name: _table_or(either, of_all)}}


def _table_or(table: Form, key: Key[Any]) -> Form:
    """Returns the form of a table of the name of *key*, or of its values."""
    return {"if": {"type": "object"}, "then": table, "else": key.schema}


def _channel_file() -> Form:
    """Returns the form of a file with a table for each channel."""
    names = {"pattern": f"^{IDENTIFIER.pattern}$", "not": {"const": channel_spec.LOG}}
    return {"type": "object", "propertyNames": names, "additionalProperties": channel_spec.FORM.schema}


FORMS: Mapping[str, Callable[[], Form]] = {
    "topology": _topology_file,
    "slas": _sla_file,
    "channels": _channel_file,
    "connections": _connection_file,
    "tests": lambda: file_format.FORM.schema,
}
