"""Refers to secrets of Kafka clusters and registries, and looks them up.

A file says where a secret is, and never has it. It is looked up by the process that connects, when it connects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.value_types import TEXT, Form

KAFKA = "kafka"
"""The table of clusters; `--secrets` names its keys without it."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PlaceKind(StrEnum):
    """Names the places where secrets may be kept."""

    ENV = "env"
    FILE = "file"
    AIRFLOW = "airflow"


PLACE: Form = {
    "type": "object",
    "properties": {**{kind.value: TEXT for kind in PlaceKind}, "field": TEXT},
    "additionalProperties": False,
    "oneOf": [{"required": [kind.value]} for kind in PlaceKind],
    "dependentRequired": {"field": [PlaceKind.AIRFLOW.value]},
}
"""The form of a place."""


@dataclass(frozen=True)
class SecretPlace:
    """The place of a secret.

    Attributes:
        kind: the kind of place.
        name: of the environment variable, the file or the Airflow connection.
        field: of an Airflow connection: `password`, `login`, or a key of its extra.
    """

    kind: PlaceKind
    name: str
    field: str = ""


Value = str | SecretPlace
"""A text that a file has, or the place of one."""


class Vault:
    """Looks up values, and shows none of them.

    Args:
        environ: the environment variables of this process.
        values: of references by their place, such as `eu.password`. They take precedence.
    """

    def __init__(self, environ: Mapping[str, str], values: Mapping[str, str]) -> None:
        self._environ, self._values = environ, values

    def __repr__(self) -> str:
        """Hides all values."""
        return "Vault()"

    def __reduce__(self) -> tuple[type[Vault], tuple[dict[str, str], dict[str, str]]]:
        """Pickles a vault without values."""
        return Vault, ({}, {})

    def text(self, place: str, value: Value, *, table: str = KAFKA) -> str:
        """Returns the text of *value*, the key *place* of *table*.

        Raises:
            InvalidArgument: it cannot be looked up.
        """
        if isinstance(value, str):
            return value
        # A place in the table `kafka` is given without the table's name.
        at, given = f"{table}.{place}", place if table == KAFKA else f"{table}.{place}"
        text = self._values[given] if given in self._values else self._look_up(at, value)
        if not text:
            msg = f"{at}: {_describe(value)} is empty; correct it, or the key"
            raise InvalidArgument(msg)
        return text

    def _look_up(self, at: str, value: SecretPlace) -> str:
        match value.kind:
            case PlaceKind.ENV:
                if value.name not in self._environ:
                    msg = f"{at}: {_describe(value)} is not set; set it for the process that connects"
                    raise InvalidArgument(msg)
                return self._environ[value.name]
            case PlaceKind.FILE:
                return _content(at, value)
            case PlaceKind.AIRFLOW:
                msg = (
                    f"{at}: only Airflow reads {_describe(value)}; let Airflow start the stream, or write the value "
                    "into a JSON file and give --secrets FILE"
                )
                raise InvalidArgument(msg)


EMPTY_VAULT = Vault({}, {})
"""A vault without values; files are readable."""


def _content(at: str, value: SecretPlace) -> str:
    try:
        return Path(value.name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        msg = f"{at}: {_describe(value)}: {problem}; correct the path, or make it readable where the stream runs"
        raise InvalidArgument(msg) from None


def _describe(value: SecretPlace) -> str:
    match value.kind:
        case PlaceKind.ENV:
            return f"environment variable {value.name}"
        case PlaceKind.FILE:
            return f"file {value.name}"
        case PlaceKind.AIRFLOW:
            return f"Airflow's connection {value.name} ({value.field})"


def read_value(keys: Keys, key: str, folder: Path | None, *, secret: bool = True, field: str = "") -> Value | None:
    """Returns the value of *key*, or the place where it is kept.

    None if the key is missing. No message has the value of a secret.

    Args:
        keys: the table.
        key: its name.
        folder: relative paths of files start here.
        secret: the value may not be in the file itself.
        field: of an Airflow connection, by default.

    Raises:
        InvalidSpec: the value is not a reference where it must be one, or names several places.
    """
    example = f'{{ env = "KAFKA_{key.rpartition(".")[2].upper()}" }}'
    written_value = keys.content.get(key)
    if secret and key in keys.content and not isinstance(written_value, dict):
        keys.fail(key, "is written in the file itself", f'write {key} = {example}, {{ file = "…" }} or an Airflow one')
    value = keys.get(key, (dict, str), example, None, form=PLACE if secret else {"anyOf": [TEXT, PLACE]})
    if isinstance(value, dict):
        return _reference(keys, key, value, folder, field or "password")
    return None if value is None else str(keys.text(key, "…"))


def _reference(keys: Keys, key: str, table: Mapping[str, object], folder: Path | None, field: str) -> SecretPlace:
    inner = Keys(keys.file, f"{keys.at}.{key}", table)
    places = [kind for kind in PlaceKind if kind in table]
    if len(places) != 1:
        problem = f"names {' and '.join(places)}" if places else "names no place"
        keys.fail(key, problem, f"write exactly one of {', '.join(PlaceKind)}")
    (kind,) = places
    name = table[kind]
    if not isinstance(name, str) or not name:
        inner.fail(kind, "is not a name", f'write {kind} = "NAME"')
    if kind is PlaceKind.ENV and not _VARIABLE.fullmatch(name):
        inner.fail(kind, "is not the name of an environment variable", "use letters, digits and _")
    allowed = {kind, "field"} if kind is PlaceKind.AIRFLOW else {kind}
    inner.refuse_all_but(allowed)
    if kind is PlaceKind.FILE:
        return SecretPlace(kind, str((folder or Path()).resolve() / name))
    return SecretPlace(kind, name, inner.text("field", "password", field) if kind is PlaceKind.AIRFLOW else "")


def read_given(file: Path) -> dict[str, str]:
    """Returns the values in the JSON *file* of `--secrets`, by their places.

    Raises:
        InvalidArgument: it cannot be read. The message has nothing of its content.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"--secrets {file}: {error.strerror}; give a file that this user can read"
        raise InvalidArgument(msg) from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        msg = f'--secrets {file}: is not a JSON object of strings; write {{"NAME.password": "…"}}'
        raise InvalidArgument(msg)
    return content
