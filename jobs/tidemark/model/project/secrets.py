"""Refers to secrets of Kafka clusters and registries, and looks them up.

A file says where a secret is, and never has it. It is looked up by the process that connects, when it connects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.settings.value_types import ANYTHING, TEXT, Form, ValueType, refuse, suggestion_of, text

KAFKA = "kafka"
"""The table of clusters; `--secrets` names its keys without it."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PlaceKind(StrEnum):
    """Names the places where secrets may be kept."""

    ENV = "env"
    FILE = "file"
    AIRFLOW = "airflow"


FIELD = "field"
"""The key of a place in Airflow that names a field of the connection."""
_WORDS = (*PlaceKind, FIELD)
PLACE: Form = {
    "type": "object",
    "properties": {
        **dict.fromkeys(_WORDS, TEXT),
        PlaceKind.ENV: {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"},
    },
    "additionalProperties": False,
    "oneOf": [{"required": [kind.value]} for kind in PlaceKind],
    "dependentRequired": {FIELD: [PlaceKind.AIRFLOW.value]},
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
        values: secrets that were given, by key with dots, such as `eu.password`. They are used before any place.
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
        """Returns *value* if it is a text, or else the secret at the place that it is.

        *place* is the key with dots, such as `eu.password`, and *table* the table of files that has it.

        Raises:
            InvalidArgument: the secret cannot be looked up.
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


def _place(table: Mapping[str, object]) -> SecretPlace:
    """Reads the table of a place. Messages have none of its values: one may be the secret itself."""
    places = [kind for kind in PlaceKind if kind in table]
    near = [name for name in table if name not in _WORDS]
    if len(places) != 1:
        if near and not places:
            refuse("is not a valid key here", suggestion_of(near[0], _WORDS, "keys"), part=near[0])
        problem = f"names {' and '.join(places)}" if places else "names no place"
        refuse(problem, f"write exactly one of {', '.join(PlaceKind)}")
    (kind,) = places
    name, field = table[kind], table.get(FIELD, "")
    if not isinstance(name, str) or not name:
        refuse("is not a name", f'write {kind} = "NAME"', part=kind)
    if kind is PlaceKind.ENV and not _VARIABLE.fullmatch(name):
        refuse("is not the name of an environment variable", "use letters, digits and _", part=kind)
    if near:
        refuse("is not a valid key here", suggestion_of(near[0], _WORDS, "keys"), part=near[0])
    if FIELD in table and kind is not PlaceKind.AIRFLOW:
        refuse(f"is set, but the place is {kind}", "leave it out: connections of Airflow have fields", part=FIELD)
    if FIELD in table and (not isinstance(field, str) or not field):
        refuse("is not a name", f'write {FIELD} = "password"', part=FIELD)
    return SecretPlace(kind, name, str(field))


def _secret(value: object, key: str, example: str) -> SecretPlace:
    if not isinstance(value, dict):
        refuse("is written in the file itself", f'write {key} = {example}, {{ file = "…" }} or an Airflow one')
    return _place(value)


SECRET = ValueType("place", ANYTHING, PLACE, _secret)
"""The type of the places of secrets, which may not be in the file itself."""


def text_or_place(of_text: ValueType[str]) -> ValueType[Value]:
    """The type of texts, and of their places."""

    def judge(value: str | dict[str, object], key: str, example: str) -> Value:
        return of_text.judge(value, key, example) if isinstance(value, str) else _place(value)

    return ValueType("string or place", (str, dict), {"anyOf": [of_text.form, PLACE]}, judge)


def _path(value: Value, key: str, _: str) -> SecretPlace:
    if isinstance(value, SecretPlace):
        return value
    if "-----BEGIN" in value:
        refuse("has a text in PEM", f'write the path of a file, {key} = "client.pem"')
    return SecretPlace(PlaceKind.FILE, value)


PATH = replace(text_or_place(text()).then(_path), word="path or place")
"""The type of paths of files in PEM, and of places of their texts."""


def located(place: SecretPlace, folder: Path | None, field: str) -> SecretPlace:
    """Returns *place* with what it leaves out.

    The path of a file becomes absolute, from *folder* on; an Airflow connection gets its usual *field*.
    """
    match place.kind:
        case PlaceKind.FILE:
            return replace(place, name=str((folder or Path()).resolve() / place.name))
        case PlaceKind.AIRFLOW:
            return replace(place, field=place.field or field)
        case PlaceKind.ENV:
            return place


def read_given(file: Path) -> dict[str, str]:
    """Returns the values in the JSON *file* of `--secrets`, by their places.

    Raises:
        InvalidArgument: the file cannot be read. The message quotes nothing of its content.
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
