"""Renders pods of drivers and executors for Spark on Kubernetes.

How it works: Spark reads a template for each role, and adds to it: the image, its command, memory and cores from the
other properties of `[spark]`, and a volume for its own files. The templates have everything else: a user without
rights, a read-only root file system, volumes and secrets.
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
from tidemark.model.settings.kubernetes import TEMPORARY, KubernetesSettings
from tidemark.storage import location

USER = 50_000
"""The user of `docker/Dockerfile`, and of Airflow's pods.

Control folders are open to their owner alone, so that all pods have one user.
"""
ENDS_WITHIN_S = 40
"""Time from SIGTERM to SIGKILL.

A drain takes at most 15 s, and 34 s in an object store; then Spark ends within 5 s.
"""
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
    volumes: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": TEMPORARY}]
    for n, (claim, folder) in enumerate(settings.claims.items()):
        volumes.append({"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": f"claim-{n}", "mountPath": folder})
    for n, (secret, folder) in enumerate(settings.secrets.items()):
        volumes.append({"name": f"secret-{n}", "secret": {"secretName": secret, "defaultMode": READABLE}})
        mounts.append({"name": f"secret-{n}", "mountPath": folder, "readOnly": True})
    container = {
        "name": f"spark-kubernetes-{role}",
        # Spark's entry point, and executors, write into their working directory.
        "workingDir": TEMPORARY,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    spec = {
        # Executors never ask Kubernetes for anything.
        "automountServiceAccountToken": role is PodRole.DRIVER,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": ENDS_WITHIN_S,
        "containers": [container],
        "volumes": volumes,
    }
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def pod_properties(settings: KubernetesSettings, labels: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """Returns Spark's properties for *settings*; writes the templates.

    Args:
        settings: of the topology.
        labels: of the pods; each gets the prefix `tidemark-`.
        folder: where templates are written, each once.
    """
    account = settings.service_account
    properties = {
        "spark.kubernetes.container.image": settings.image,
        **ROOM_FOR_PYTHON,
        **({"spark.kubernetes.authenticate.driver.serviceAccountName": account} if account else {}),
    }
    for role in PodRole:
        properties[TEMPLATE.format(role)] = str(_written(folder, role, pod_template(settings, role)))
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


def _written(folder: Path, role: PodRole, template: Mapping[str, Any]) -> Path:
    """Returns the file with *template*, named by its content."""
    text = json.dumps(template, indent=1)
    file = folder / f"{role}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        location.replace(file, text)
    return file
