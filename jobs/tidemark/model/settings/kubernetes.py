"""The table `spark.kubernetes` of a topology file: pods of drivers and executors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.model.settings.toml_keys import Keys

SCHEME = "k8s://"
"""Begins the masters that are Kubernetes."""
TEMPORARY = "/tmp"
"""The folder of a pod that its program may write, besides volumes."""
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_FOLDER = re.compile(r"(/[\w.-]+)+")


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """Pods of a topology's drivers and executors.

    Attributes:
        image: it has this version of Tidemark, its jars and Spark's entry point.
        namespace: None if Airflow's connection has it.
        service_account: of drivers, which create executors; None: that of the namespace.
        claims: the folder of each mounted volume claim.
        secrets: the folder of each mounted secret.
    """

    image: str
    namespace: str | None = None
    service_account: str | None = None
    claims: Mapping[str, str] = field(default_factory=dict, hash=False)
    secrets: Mapping[str, str] = field(default_factory=dict, hash=False)


def read_kubernetes(keys: Keys) -> KubernetesSettings:
    """Reads the table `spark.kubernetes` of a file.

    Raises:
        InvalidSpec: it is not valid.
    """
    settings = KubernetesSettings(
        image=keys.text("image", "registry.example/tidemark:1"),
        namespace=_name(keys, "namespace", "tidemark"),
        service_account=_name(keys, "service_account", "tidemark"),
        claims=_folders(keys, "claims", '{ tidemark-warehouse = "/data/warehouse" }'),
        secrets=_folders(keys, "secrets", '{ tidemark-kafka = "/run/secrets/kafka" }'),
    )
    folders = [*settings.claims.values(), *settings.secrets.values()]
    if len({*folders, TEMPORARY}) <= len(folders):
        keys.fail("claims", f"and secrets have a folder twice, or {TEMPORARY}", "write another folder for each")
    return settings


def _name(keys: Keys, key: str, example: str) -> str | None:
    """Returns the name of an object of Kubernetes, if there is one."""
    value: str | None = keys.text(key, example, None)
    if value is not None:
        _check_name(keys, key, value)
    return value


def _check_name(keys: Keys, key: str, value: str) -> None:
    if not _NAME.fullmatch(value):
        keys.fail(key, f"names {value!r}", "use lower-case letters, digits, - and ., as Kubernetes does")


def _folders(keys: Keys, key: str, example: str) -> dict[str, str]:
    """Returns a folder for each object of Kubernetes."""
    folders: dict[str, str] = keys.mapping(key, example, None) or {}
    for name, folder in folders.items():
        _check_name(keys, key, name)
        if not _FOLDER.fullmatch(folder):
            keys.fail(f"{key}.{name}", f"is {folder!r}", 'write the path of a folder, such as "/data/warehouse"')
    return folders
