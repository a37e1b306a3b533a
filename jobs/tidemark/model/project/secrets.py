"""Refers to secrets of Kafka clusters, and looks them up.

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

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Kept(StrEnum):
    """Names the places where secrets may be kept."""

    ENV = "env"
    FILE = "file"
    AIRFLOW = "airflow"


@dataclass(frozen=True)
class SecretPlace:
    """The place of a secret.

    Attributes:
        kept: the kind of place.
        name: of the environment variable, the file or the Airflow connection.
        field: of an Airflow connection: `password`, `login`, or a key of its extra.
    """

    kept: Kept
    name: str
    field: str = ""


Value = str | SecretPlace
"""A text that a file has, or the place of one."""


class Vault:
    """Looks up values, and shows none of them.

    Args:
        environ: the environment variables of this process.
        given: values of references by their place, such as `eu.password`. They take precedence.
    """

    def __init__(self, environ: Mapping[str, str], given: Mapping[str, str]) -> None:
        self._environ, self._given = environ, given

    def __repr__(self) -> str:
        """Hides all values."""
        return "Vault()"

    def __reduce__(self) -> tuple[type[Vault], tuple[dict[str, str], dict[str, str]]]:
        """Pickles a vault without values."""
        return Vault, ({}, {})

    def text(self, place: str, value: Value) -> str:
        """Returns the text of *value*, the key *place* of table `kafka`.

        Raises:
            InvalidArgument: it cannot be looked up.
        """
        if isinstance(value, str):
            return value
        text = self._given[place] if place in self._given else self._kept(f"kafka.{place}", value)
        if not text:
            msg = f"kafka.{place}: {_described(value)} is empty; correct it, or the key"
            raise InvalidArgument(msg)
        return text

    def _kept(self, at: str, value: SecretPlace) -> str:
        match value.kept:
            case Kept.ENV:
                if value.name not in self._environ:
                    msg = f"{at}: {_described(value)} is not set; set it for the process that connects to Kafka"
                    raise InvalidArgument(msg)
                return self._environ[value.name]
            case Kept.FILE:
                return _content(at, value)
            case Kept.AIRFLOW:
                msg = (
                    f"{at}: only Airflow reads {_described(value)}; let Airflow start the stream, or write the value "
                    "into a JSON file and give --secrets FILE"
                )
                raise InvalidArgument(msg)


NOTHING = Vault({}, {})
"""A vault without values; files are readable."""


def _content(at: str, value: SecretPlace) -> str:
    try:
        return Path(value.name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        seen = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        msg = f"{at}: {_described(value)}: {seen}; correct the path, or make it readable where the stream runs"
        raise InvalidArgument(msg) from None


def _described(value: SecretPlace) -> str:
    match value.kept:
        case Kept.ENV:
            return f"environment variable {value.name}"
        case Kept.FILE:
            return f"file {value.name}"
        case Kept.AIRFLOW:
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
    given = keys.content.get(key)
    if secret and key in keys.content and not isinstance(given, dict):
        keys.fail(key, "is written in the file itself", f'write {key} = {example}, {{ file = "…" }} or an Airflow one')
    value = keys.get(key, (dict, str), example, None)
    if isinstance(value, dict):
        return _reference(keys, key, value, folder, field or "password")
    return None if value is None else str(keys.text(key, "…"))


def _reference(keys: Keys, key: str, table: Mapping[str, object], folder: Path | None, field: str) -> SecretPlace:
    inner = Keys(keys.file, f"{keys.at}.{key}", table)
    places = [kept for kept in Kept if kept in table]
    if len(places) != 1:
        seen = f"names {' and '.join(places)}" if places else "names no place"
        keys.fail(key, seen, f"write exactly one of {', '.join(Kept)}")
    (kept,) = places
    name = table[kept]
    if not isinstance(name, str) or not name:
        inner.fail(kept, "is not a name", f'write {kept} = "NAME"')
    if kept is Kept.ENV and not _VARIABLE.fullmatch(name):
        inner.fail(kept, "is not the name of an environment variable", "use letters, digits and _")
    allowed = {kept, "field"} if kept is Kept.AIRFLOW else {kept}
    inner.refuse_all_but(allowed)
    if kept is Kept.FILE:
        return SecretPlace(kept, str((folder or Path()).resolve() / name))
    return SecretPlace(kept, name, inner.text("field", "password", field) if kept is Kept.AIRFLOW else "")


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
