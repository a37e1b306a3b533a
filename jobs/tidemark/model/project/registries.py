"""The schema registries of a project.

A registry is a table `[registry.NAME]` with `url`, in a topology's file or, for all topologies, in `connections.toml`.
A source names it with `registry = "NAME"`. Any registry that speaks Confluent's HTTP interface can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from tidemark.errors import InvalidArgument
from tidemark.model.project.connections import REGISTRY, REGISTRY_EXAMPLE, named_tables, shared_tables
from tidemark.model.project.kafka_security import refuse_alone, unusable
from tidemark.model.project.secrets import EMPTY_VAULT, PATH, SECRET, SecretPlace, Value, Vault, located, text_or_place
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, Values, optional, required
from tidemark.model.settings.value_types import ADDRESS, refuse
from tidemark.safe_text import hide

TABLE = REGISTRY.name


def _address(text: str, key: str, example: str) -> str:
    try:
        parts = urlsplit(text)
        # urlsplit checks a port only when it is looked at.
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        # A text with a login may have a password, which the message must not have.
        refuse("is not an address" if "@" in text else f"is {text!r}", f"write {key} = {example}")
    if parts.username is not None or parts.password is not None:
        refuse("has a login", "write username and password as keys of their own")
    if parts.query or parts.fragment:
        refuse(f"is {text!r}, with a query", f"write {key} = {example}")
    return text.rstrip("/")


URL = required(
    "url",
    value_types.text(ADDRESS).then(_address),
    example=f'"{REGISTRY_EXAMPLE}"',
    meaning="its address, `https` or `http`, with a path if the registry's interface is below one",
)
USERNAME = optional(
    "username",
    text_or_place(value_types.text()),
    example='"tidemark"',
    meaning="the user, for basic authentication",
)
PASSWORD = optional(
    "password",
    SECRET,
    example='{ env = "REGISTRY_PASSWORD" }',
    without="required with `username`",
    meaning="the user's password",
)
SSL_CA = optional(
    "ssl_ca",
    PATH,
    example='"certificates/ca.pem"',
    without="CAs of the system",
    meaning="PEM file with the CAs that sign the registry's certificate",
)
_FIELDS = {USERNAME: "login", PASSWORD: "password", SSL_CA: "ssl_ca"}
"""By key, the usual field of an Airflow connection."""


def _refuse_unused_ca(values: Values) -> None:
    """Refuses CAs where no certificate is checked."""
    if values[SSL_CA] is not None and not values[URL].startswith("https:"):
        values.fail(SSL_CA, f"is written, but url is {values[URL]!r}", "write a url with https, or leave it out")


FORM = TableForm(
    keys=(URL, USERNAME, PASSWORD, SSL_CA),
    rules=(
        partial(refuse_alone, key=USERNAME, other=PASSWORD),
        partial(refuse_alone, key=PASSWORD, other=USERNAME),
        _refuse_unused_ca,
    ),
)
"""The table of a registry, `[registry.NAME]`."""


@dataclass(frozen=True)
class Registry:
    """A schema registry, and how its clients log in.

    Secrets are looked up when they are used, and are not kept.

    Attributes:
        name: by which sources name it.
        url: its address, without a slash at the end.
        values: the text, or the place of the secret, by key of the registry's table.
        vault: where the secrets are looked up.
    """

    name: str
    url: str
    values: Mapping[str, Value] = field(default_factory=dict)
    # It has secrets, and the text of a registry may get into an error.
    vault: Vault = field(default=EMPTY_VAULT, repr=False, compare=False)

    @property
    def references(self) -> dict[str, SecretPlace]:
        """The places of its secrets, by key with dots: `registry.plant.password`."""
        places = {key: value for key, value in self.values.items() if isinstance(value, SecretPlace)}
        return {f"{TABLE}.{self.name}.{key}": value for key, value in places.items()}

    def text(self, key: str) -> str | None:
        """Returns the text of *key*; None without the key.

        Raises:
            InvalidArgument: the secret cannot be looked up.
        """
        if key not in self.values:
            return None
        text = self.vault.text(f"{self.name}.{key}", self.values[key], table=TABLE)
        if problem := unusable(key, text):
            msg = f"{TABLE}.{self.name}.{key}: {problem}"
            raise InvalidArgument(msg)
        if key == "password":
            hide(text)
        return text


Registries = Mapping[str, Registry]
"""By the name that sources use."""


def read_registries(file: str, content: Mapping[str, Any], folder: Path | None = None) -> Registries:
    """Reads the registries of *content*, the table `registry` of *file*.

    Raises:
        InvalidSpec: registries are not valid; a line for each mistake.
    """
    tables = named_tables(FORM, file, REGISTRY, content, what="name of a registry")
    return MappingProxyType({name: _registry(values, name, folder) for name, values in tables.items()})


def shared_registries(folder: Path) -> Registries:
    """Returns the registries in `connections.toml` of a project.

    The project's topologies lie in *folder*.

    Raises:
        InvalidSpec: the file is not valid.
    """
    return shared_tables(folder, REGISTRY, read_registries)


def _registry(values: Values, name: str, folder: Path | None) -> Registry:
    texts: dict[str, Value] = {}
    for key, field_of_airflow in _FIELDS.items():
        value = values[key]
        if value is not None:
            texts[key.name] = located(value, folder, field_of_airflow) if isinstance(value, SecretPlace) else value
    return Registry(name, values[URL], texts)


def with_secrets(registries: Registries, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Registries:
    """Returns *registries*, which look their secrets up.

    Args:
        registries: the registries of a topology.
        environ: the environment variables of this process.
        secrets: values of secrets by their places, such as `registry.plant.password`.
    """
    vault = Vault(environ, secrets)
    return MappingProxyType({name: replace(registry, vault=vault) for name, registry in registries.items()})


def passwords_in_clear(registries: Registries) -> list[str]:
    """Returns the places of registries that send a password unencrypted."""
    return [
        f"{TABLE}.{name}.url: warning: http sends the password unencrypted; use https"
        for name, registry in registries.items()
        if "password" in registry.values and registry.url.startswith("http:")
    ]
