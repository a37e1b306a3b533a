"""Renders pods of drivers and executors for Spark on Kubernetes.

How it works: Spark reads a template for each role, and adds to it: the image, its command, memory and cores from the
other properties of `[spark]`, and a volume for its own files. The templates have everything else: `pod.yaml` has a user
without rights and a read-only root file system, and the settings of the topology add volumes and secrets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

from tidemark.model.project.spark_settings import ROOM_FOR_PYTHON
from tidemark.model.settings.kubernetes import KubernetesSettings
from tidemark.storage import location

POD = Path(__file__).with_name("pod.yaml")
READABLE = 0o444
LONGEST_LABEL = 63
TEMPLATE = "spark.kubernetes.{}.podTemplateFile"
_IS_TEMPLATE = re.compile(re.escape(TEMPLATE.format("driver")) + "=").match


class PodRole(StrEnum):
    """A kind of pod that Spark creates."""

    DRIVER = "driver"
    EXECUTOR = "executor"


def pod_template(settings: KubernetesSettings, role: PodRole) -> dict[str, Any]:
    """Returns the template of pods with *role*, an object of Kubernetes."""
    import yaml  # DAGs are parsed without it

    pod: dict[str, Any] = yaml.safe_load(POD.read_text(encoding="utf-8"))
    spec = pod["spec"]
    spec["automountServiceAccountToken"] = role is PodRole.DRIVER
    (container,) = spec["containers"]
    container["name"] = f"spark-kubernetes-{role}"
    volumes, mounts = spec["volumes"], container["volumeMounts"]
    for n, (claim, folder) in enumerate(settings.claims.items()):
        volumes.append({"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{n}", "mountPath": folder})
    for n, (secret, folder) in enumerate(settings.secrets.items()):
        volumes.append({"name": f"secret-{n}", "secret": {"secretName": secret, "defaultMode": READABLE}})
        mounts.append({"name": f"secret-{n}", "mountPath": folder, "readOnly": True})
    return pod


def pod_properties(settings: KubernetesSettings, labels: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """Returns Spark's properties for *settings*; writes the templates.

    Args:
        settings: the settings of the topology.
        labels: labels of the pods; each gets the prefix `tidemark-`.
        folder: the folder to which templates are written, each once.
    """
    account = settings.service_account
    properties = {
        "spark.kubernetes.container.image": settings.image,
        **ROOM_FOR_PYTHON,
        **({"spark.kubernetes.authenticate.driver.serviceAccountName": account} if account else {}),
    }
    for role in PodRole:
        properties[TEMPLATE.format(role)] = str(_write_template(folder, role, pod_template(settings, role)))
    return {**properties, **_labelled(labels)}


def launch_command(command: Sequence[str], launch_id: str, stream: str) -> list[str]:
    """Returns *command*, the spark-submit of a driver, with its labels.

    A driver with a pod of its own runs one *stream*: its pods get labels for it and for *launch_id*. The command does
    not wait for its end, which may be days away: the supervisor reads heartbeats.
    """
    program, *rest = command
    is_pod = ("--deploy-mode", "cluster") in pairwise(rest) and any(map(_IS_TEMPLATE, rest))
    labels = _labelled({"stream": stream, "launch": launch_id})
    properties = {**labels, "spark.kubernetes.submission.waitAppCompletion": "false"}
    added = chain.from_iterable(("--conf", f"{name}={value}") for name, value in properties.items())
    return [program, *(added if is_pod else ()), *rest]


def image_address(path: str) -> str:
    """Returns the address of a file that the image has at *path*."""
    return f"local://{path}"


def _labelled(labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties that give *labels* to all pods."""
    # A label has at most 63 characters, and neither begins nor ends with _.
    accepted = {name: value[:LONGEST_LABEL].strip("_") for name, value in labels.items()}
    named = product(PodRole, accepted.items())
    return {f"spark.kubernetes.{role}.label.tidemark-{name}": value for role, (name, value) in named}


def _write_template(folder: Path, role: PodRole, template: Mapping[str, Any]) -> Path:
    """Returns the file with *template*, named by its content."""
    text = json.dumps(template, indent=1)
    file = folder / f"{role}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        location.replace(file, text)
    return file
