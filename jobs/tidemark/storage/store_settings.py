"""Reads the settings of an object store from a connection.

Programs of a store (obstore, delta-rs, Spark) take its settings from variables of their environment. Airflow keeps them
in a connection, whose fields have the names of Amazon's provider for Airflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.errors import InvalidArgument
from tidemark.storage.object_path import ADLS, GCS, SCHEME, ObjectPath


@dataclass(frozen=True)
class StoreFields:
    """The fields of a connection to one kind of store.

    Attributes:
        variables: the variable of the environment, by field.
        identity: fields that identify a user; those of the environment and of a connection are never mixed.
        required: fields that a connection must have.
    """

    variables: Mapping[str, str]
    identity: frozenset[str]
    required: frozenset[str]


FIELDS = {
    SCHEME: StoreFields(
        variables={
            "login": "AWS_ACCESS_KEY_ID",
            "password": "AWS_SECRET_ACCESS_KEY",
            "aws_session_token": "AWS_SESSION_TOKEN",
            "region_name": "AWS_REGION",
            "endpoint_url": "AWS_ENDPOINT_URL",
        },
        identity=frozenset({"login", "password", "aws_session_token"}),
        required=frozenset({"login", "password"}),
    ),
    GCS: StoreFields(
        variables={"key_path": "GOOGLE_APPLICATION_CREDENTIALS"},
        identity=frozenset({"key_path"}),
        required=frozenset({"key_path"}),
    ),
    ADLS: StoreFields(
        variables={
            "login": "AZURE_STORAGE_CLIENT_ID",
            "password": "AZURE_STORAGE_CLIENT_SECRET",
            "tenant_id": "AZURE_STORAGE_TENANT_ID",
        },
        identity=frozenset({"login", "password", "tenant_id"}),
        required=frozenset({"login", "password", "tenant_id"}),
    ),
}
"""The fields of connections by the scheme of the store."""
SECRETS = frozenset({"password", "aws_session_token"})
"""Fields whose values are masked in logs."""
ALLOW_HTTP = {"AWS_ENDPOINT_URL": "AWS_ALLOW_HTTP"}


def store_variables(warehouse: ObjectPath, connection: str, fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the values of the variables for the store of *warehouse*; a variable with None has to be unset.

    Args:
        warehouse: a warehouse in an object store.
        connection: the name of the connection, for messages.
        fields: its fields; None and "" count as absent. An address `http://` allows a store without TLS.

    Raises:
        InvalidArgument: a field is unknown, or a required one is missing. The message has no values.
    """
    of_store = FIELDS[warehouse.parts[0]]
    given = {field: str(value) for field, value in fields.items() if value not in (None, "")}
    if unknown := sorted(given.keys() - of_store.variables.keys()):
        msg = f"connection {connection}: unknown field {unknown[0]}; known: {', '.join(sorted(of_store.variables))}"
        raise InvalidArgument(msg)
    if missing := sorted(of_store.required - given.keys()):
        msg = f"connection {connection}: {missing[0]} is missing; a store {warehouse.parts[0]}// needs it"
        raise InvalidArgument(msg)
    # A session token of the environment, for example, does not fit a key of the connection.
    unset: dict[str, str | None] = {of_store.variables[field]: None for field in of_store.identity - given.keys()}
    variables = {of_store.variables[field]: value for field, value in given.items()}
    # obstore and delta-rs refuse an address without TLS unless this is set.
    without_tls = {
        allow: "true" for variable, allow in ALLOW_HTTP.items() if variables.get(variable, "").startswith("http://")
    }
    return {**unset, **variables, **without_tls}
