"""The table `spark.kubernetes` of a topology file: pods of drivers and executors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import TableForm, Values, optional, required
from tidemark.model.settings.value_types import refuse

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
        image: the image of the pods, with this version of Tidemark, its jars and Spark's entry point.
        namespace: the namespace of the pods; None if Airflow's connection has it.
        service_account: the account of drivers, which create executors; None for the default of the namespace.
        claims: the folder into which each volume claim is mounted, by the name of the claim.
        secrets: the folder into which each secret is mounted, by the name of the secret.
    """

    image: str
    namespace: str | None = None
    service_account: str | None = None
    claims: Mapping[str, str] = field(default_factory=dict, hash=False)
    secrets: Mapping[str, str] = field(default_factory=dict, hash=False)


def _name(value: str, *_: str) -> str:
    if not _NAME.fullmatch(value):
        refuse(f"names {value!r}", "use lower-case letters, digits, - and ., as Kubernetes does")
    return value


def _folders(folders: Mapping[str, str], *_: str) -> Mapping[str, str]:
    for name, folder in folders.items():
        _name(name)
        if not _FOLDER.fullmatch(folder):
            refuse(f"is {folder!r}", 'write the path of a folder, such as "/data/warehouse"', part=name)
    return folders


OBJECT = value_types.text({"type": "string", "pattern": f"^{_NAME.pattern}$"}).then(_name)
"""The type of names of Kubernetes' objects."""
FOLDERS = value_types.mapping(_NAME).then(
    _folders,
    {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{_NAME.pattern}$"},
        "additionalProperties": {"type": "string", "pattern": f"^{_FOLDER.pattern}$"},
    },
)
"""The type of a folder for each object of Kubernetes."""
IMAGE = required("image", value_types.text(), example='"registry.example/tidemark-spark:1"', meaning="the image above")
NAMESPACE = optional(
    "namespace",
    OBJECT,
    example='"tidemark"',
    without="that of Airflow's connection (`namespace` in its extra), else `default`",
    meaning="namespace of the pods",
)
SERVICE_ACCOUNT = optional(
    "service_account",
    OBJECT,
    example='"tidemark"',
    without="that of the namespace",
    meaning="account of drivers: they create executors",
)
CLAIMS = optional(
    "claims", FOLDERS, example='{ tidemark-warehouse = "/data/warehouse" }', meaning="folder of each volume claim"
)
SECRETS = optional(
    "secrets",
    FOLDERS,
    example='{ tidemark-kafka = "/run/secrets/kafka" }',
    meaning=(
        "folder of each secret: its keys are files there, which all topologies may name "
        "([connections.md](connections.md))"
    ),
)


def _refuse_shared_folders(values: Values) -> None:
    """Refuses a folder that is mounted twice, or is that of temporary files."""
    folders = [*values.get(CLAIMS, {}).values(), *values.get(SECRETS, {}).values()]
    if len({*folders, TEMPORARY}) <= len(folders):
        values.fail(CLAIMS, f"and secrets have a folder twice, or {TEMPORARY}", "write another folder for each")


FORM = TableForm(keys=(IMAGE, NAMESPACE, SERVICE_ACCOUNT, CLAIMS, SECRETS), rules=(_refuse_shared_folders,))
"""The table `spark.kubernetes`."""


def kubernetes_of(values: Values) -> KubernetesSettings:
    """Returns what a table of FORM says."""
    return KubernetesSettings(
        image=values[IMAGE],
        namespace=values[NAMESPACE],
        service_account=values[SERVICE_ACCOUNT],
        claims=values.get(CLAIMS, {}),
        secrets=values.get(SECRETS, {}),
    )
