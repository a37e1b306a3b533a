"""Kubernetes' official models and Spark's own submission accept what Airflow renders.

No pod is started: a local server stands in place of the API.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from pods.api_server import EXECUTORS, AcceptedObjects
from pods.conftest import HERE, PROJECT, Run

Models = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
LAUNCH = "0123abcd"


def command_of(run: Run, file: Path) -> list[str]:
    """Returns the command by which Airflow starts `flights/status`."""
    printed = run(sys.executable, str(HERE / "rendered.py"), str(file), "status", LAUNCH)
    words: list[str] = json.loads(printed.splitlines()[-1])  # before it the provider logs
    return words


def options(command: list[str]) -> dict[str, str]:
    """Returns properties and options by name; the last one counts."""
    pairs = list(pairwise(command))
    properties = dict(value.split("=", 1) for option, value in pairs if option == "--conf")
    return {option: value for option, value in pairs if option.startswith("--")} | properties


def test_the_official_models_accept_templates_and_the_page(
    run: Run, read_by_models: Models, flights: Callable[..., Path]
) -> None:
    command = command_of(run, flights(deploy="cluster"))
    found = options(command)
    assert (found["--deploy-mode"], found["spark.kubernetes.namespace"]) == ("cluster", "tidemark")
    assert found["spark.kubernetes.driver.label.tidemark-launch"] == LAUNCH
    # The image has code and jars at the paths of Airflow's own.
    assert command[-1] == f"local://{PROJECT}/jobs/stream.py"
    assert all(jar.startswith(f"local://{PROJECT}/.jars/") for jar in found["--jars"].split(","))
    assert "--py-files" not in found
    roles = ("driver", "executor")
    templates = [json.loads(Path(found[f"spark.kubernetes.{role}.podTemplateFile"]).read_text()) for role in roles]
    page = (PROJECT / "docs" / "kubernetes.md").read_text()
    shown = [
        part
        for block in re.findall(r"^```yaml\n(apiVersion.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
        for part in yaml.safe_load_all(block)
    ]
    assert [each["kind"] for each in shown] == ["ServiceAccount", "Role", "RoleBinding"]
    assert templates[0] == yaml.safe_load((PROJECT / "tests" / "unit" / "pods" / "driver.yaml").read_text())
    objects = [*templates, *shown]
    # A model raises for a missing field, and drops an unknown one.
    assert read_by_models(objects) == objects


@pytest.mark.long
def test_spark_submits_a_driver_that_the_models_accept(
    run: Run, read_by_models: Models, flights: Callable[..., Path], api: AcceptedObjects
) -> None:
    run(*command_of(run, flights(deploy="cluster", address=api.address)))
    (pod,) = api.pods("driver")
    assert read_by_models(api.objects) == api.objects
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert {name: value for name, value in labels.items() if name.startswith("tidemark-")} == {
        "tidemark-topology": "flights",
        "tidemark-stream": "status",
        "tidemark-launch": LAUNCH,
    }
    (container,) = spec["containers"]
    assert (container["image"], container["workingDir"]) == ("registry.example/tidemark-spark:1", "/tmp")
    assert container["args"][-1] == f"local://{PROJECT}/jobs/stream.py"
    # 1 GB for the JVM and as much for Python.
    assert container["resources"] == {"limits": {"memory": "2048Mi"}, "requests": {"cpu": "1", "memory": "2048Mi"}}
    assert (spec["serviceAccountName"], spec["terminationGracePeriodSeconds"]) == ("tidemark", 40)
    check_rights(spec)
    (template,) = (
        each["data"]["podspec-configmap-key"] for each in api.of_kind("ConfigMap") if "podspec" in str(each["data"])
    )
    assert json.loads(template)["spec"]["automountServiceAccountToken"] is False


@pytest.mark.long
def test_a_driver_in_client_mode_creates_executors_by_template(
    run: Run, read_by_models: Models, flights: Callable[..., Path], api: AcceptedObjects, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import urllib.request\n"
        "from pyspark.sql import SparkSession\n"
        "session = SparkSession.builder.getOrCreate()\n"
        f"urllib.request.urlopen('{api.address}{EXECUTORS}').read()\n"
        "session.stop()\n"
    )
    command = command_of(run, flights(deploy="client", address=api.address))
    assert (command[-1], "--py-files" in command) == (f"{PROJECT}/jobs/stream.py", True)
    run(*command[:-1], str(job))
    pod = api.pods("executor")[0]
    assert read_by_models(api.pods("executor")) == api.pods("executor")
    assert pod["metadata"]["labels"]["tidemark-topology"] == "flights"
    (container,) = pod["spec"]["containers"]
    # 2 GB for the JVM and as much for Python.
    assert container["resources"]["limits"] == {"memory": "4096Mi"}
    assert pod["spec"]["automountServiceAccountToken"] is False
    check_rights(pod["spec"])


def check_rights(spec: dict[str, Any]) -> None:
    """Checks that a pod is not root, and writes to volumes only."""
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 50000
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    folders = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert (folders["/tmp"], folders["/data/warehouse"], folders["/run/secrets/kafka"]) == (False, False, True)
