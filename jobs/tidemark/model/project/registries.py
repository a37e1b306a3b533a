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

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.escaping import hide
from tidemark.model.project.connections import shared_tables
from tidemark.model.project.kafka_security import unusable
from tidemark.model.project.secrets import EMPTY_VAULT, PlaceKind, SecretPlace, Value, Vault, read_value
from tidemark.model.settings.toml_keys import Keys, read_tables
from tidemark.model.settings.value_types import IDENTIFIER

EXAMPLE = "https://registry.example.org"
TABLE = "registry"
_LOGINS = {"username": "login", "password": "password"}
"""By key, the field of an Airflow connection."""


@dataclass(frozen=True)
class Registry:
    """A schema registry, and how its clients log in.

    Secrets are looked up when they are used, and are not kept.

    Attributes:
        name: by which sources name it.
        url: its address, without a slash at the end.
        values: by key of the TOML table, texts and places of secrets.
        vault: where the secrets are looked up.
    """

    name: str
    url: str
    values: Mapping[str, Value] = field(default_factory=dict)
    # It has secrets, and the text of a registry may get into an error.
    vault: Vault = field(default=EMPTY_VAULT, repr=False, compare=False)

    @property
    def references(self) -> dict[str, SecretPlace]:
        """The places of its secrets, by their keys from the table on."""
        places = {key: value for key, value in self.values.items() if isinstance(value, SecretPlace)}
        return {f"{TABLE}.{self.name}.{key}": value for key, value in places.items()}

    def text(self, key: str) -> str | None:
        """Returns the text of *key*; None without the key.

        Raises:
            InvalidArgument: it cannot be looked up.
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
    return read_tables(file, TABLE, content, partial(_read, folder))


def shared_registries(folder: Path) -> Registries:
    """Returns the registries in `connections.toml` of a project.

    The project's topologies lie in *folder*.

    Raises:
        InvalidSpec: the file is not valid.
    """
    return shared_tables(folder, TABLE, f'{{ main = {{ url = "{EXAMPLE}" }} }}', read_registries)


def _read(folder: Path | None, name: str, keys: Keys) -> Registry:
    if not IDENTIFIER.fullmatch(name):
        remedy = "use a lower-case letter, then lower-case letters, digits and _"
        raise InvalidSpec.at(keys.file, keys.at, "is not a valid name of a registry", remedy)
    url = _url(keys)
    values: dict[str, Value] = {}
    for key, of_airflow in _LOGINS.items():
        if (value := read_value(keys, key, folder, secret=key == "password", field=of_airflow)) is not None:
            values[key] = value
    for key, other in (("username", "password"), ("password", "username")):
        if key in values and other not in values:
            keys.fail(key, f"is written without {other}", f"write {other}, too", beside=other)
    if (ca := read_value(keys, "ssl_ca", folder, secret=False, field="ssl_ca")) is not None:
        if not url.startswith("https:"):
            keys.fail("ssl_ca", f"is written, but url is {url!r}", "write a url with https, or leave it out")
        place = SecretPlace(PlaceKind.FILE, str((folder or Path()).resolve() / ca)) if isinstance(ca, str) else ca
        values["ssl_ca"] = place
    return Registry(name, url, values)


def _url(keys: Keys) -> str:
    text: str = keys.text("url", EXAMPLE)
    try:
        parts = urlsplit(text)
        # urlsplit checks a port only when it is looked at.
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_address = False
    if not is_address:
        # A text with a login may have a password, which the message must not have.
        keys.fail("url", "is not an address" if "@" in text else f"is {text!r}", f'write url = "{EXAMPLE}"')
    if parts.username is not None or parts.password is not None:
        keys.fail("url", "has a login", "write username and password as keys of their own")
    if parts.query or parts.fragment:
        keys.fail("url", f"is {text!r}, with a query", f'write url = "{EXAMPLE}"')
    return text.rstrip("/")


def with_secrets(registries: Registries, environ: Mapping[str, str], secrets: Mapping[str, str]) -> Registries:
    """Returns *registries*, which look their secrets up.

    Args:
        registries: those of a topology.
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
