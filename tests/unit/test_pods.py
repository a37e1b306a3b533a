"""Pods follow from a topology's table, and the page shows them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.errors import InvalidSpec
from tidemark.model.project.spark_settings import SparkSettings, read_spark
from tidemark.model.settings.kubernetes import KubernetesSettings
from tidemark_airflow.operators.pods import PodRole, launch_command, pod_properties, pod_template

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
RENDERED = Path(__file__).parent / "pods"
"""What is rendered of the page's topology, written by hand."""
LABELS = {"topology": "flights"}
SUBMIT = ["spark-submit", "--conf", "spark.kubernetes.driver.podTemplateFile=x", "--deploy-mode", "cluster", "a.py"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def spark() -> SparkSettings:
    """The settings of the page's topology."""
    return read_spark("x.toml", tomllib.loads(blocks("toml")[0])["spark"])


@pytest.fixture
def pods(spark: SparkSettings) -> KubernetesSettings:
    assert spark.kubernetes is not None
    return spark.kubernetes


def test_the_template_of_drivers_has_claims_and_secrets_and_no_rights(pods: KubernetesSettings) -> None:
    assert yaml.safe_load((RENDERED / "driver.yaml").read_text()) == pod_template(pods, PodRole.DRIVER)


def test_executors_differ_by_their_name_and_have_no_token(pods: KubernetesSettings) -> None:
    driver, executor = pod_template(pods, PodRole.DRIVER), pod_template(pods, PodRole.EXECUTOR)
    assert executor["spec"]["automountServiceAccountToken"] is False
    assert executor["spec"]["containers"][0]["name"] == "spark-kubernetes-executor"
    driver["spec"]["automountServiceAccountToken"] = False
    driver["spec"]["containers"][0]["name"] = "spark-kubernetes-executor"
    assert executor == driver


def test_properties_of_a_driver_name_image_labels_and_templates(tmp_path: Path, pods: KubernetesSettings) -> None:
    rendered = {
        **pod_properties(pods, LABELS, folder=tmp_path),
        **properties_of(launch_command(SUBMIT, "LAUNCH", "status")[:-5]),
        "spark.kubernetes.namespace": "tidemark",  # the provider of Airflow adds it
    }
    shown = dict(line.split("=", 1) for line in (RENDERED / "stream.properties").read_text().splitlines())
    assert shown.keys() == rendered.keys()
    for name in shown.keys() - {f"spark.kubernetes.{role}.podTemplateFile" for role in PodRole}:
        assert shown[name] == rendered[name]


def properties_of(command: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in command if word.startswith("spark."))


def test_a_template_is_written_once_by_its_content(tmp_path: Path, pods: KubernetesSettings) -> None:
    first = pod_properties(pods, {}, folder=tmp_path)["spark.kubernetes.driver.podTemplateFile"]
    assert json.loads(Path(first).read_text()) == pod_template(pods, PodRole.DRIVER)
    written = Path(first).stat().st_ino
    assert pod_properties(pods, LABELS, folder=tmp_path)["spark.kubernetes.driver.podTemplateFile"] == first
    assert (Path(first).stat().st_ino, len(list(tmp_path.iterdir()))) == (written, 2)


def test_a_long_name_is_a_label_that_kubernetes_accepts(tmp_path: Path, pods: KubernetesSettings) -> None:
    name = f"{'a' * 60}_on_processing_time"
    properties = pod_properties(pods, {"topology": name, "job": f"{'b' * 62}_c"}, folder=tmp_path)
    assert properties["spark.kubernetes.driver.label.tidemark-topology"] == f"{'a' * 60}_on"
    assert properties["spark.kubernetes.driver.label.tidemark-job"] == "b" * 62


def test_a_pod_of_a_launch_has_its_id_and_no_waiting_submitter() -> None:
    assert launch_command(SUBMIT, "a1", "status") == [
        "spark-submit",
        *("--conf", "spark.kubernetes.driver.label.tidemark-stream=status"),
        *("--conf", "spark.kubernetes.driver.label.tidemark-launch=a1"),
        *("--conf", "spark.kubernetes.executor.label.tidemark-stream=status"),
        *("--conf", "spark.kubernetes.executor.label.tidemark-launch=a1"),
        *("--conf", "spark.kubernetes.submission.waitAppCompletion=false"),
        *SUBMIT[1:],
    ]


@pytest.mark.parametrize(
    "command", [["spark-submit", *SUBMIT[3:]], ["spark-submit", *SUBMIT[1:3], "--deploy-mode", "client", "a.py"]]
)
def test_a_driver_without_a_pod_keeps_its_command(command: list[str]) -> None:
    """A command that differs would end the process of other streams."""
    assert launch_command(command, "a1", "status") == command


def test_every_key_of_the_page_has_an_accepted_example() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", PAGE, flags=re.MULTILINE)
    examples = tomllib.loads("\n".join(f"{key} = {example}" for key, example in rows))
    read = read_spark("x.toml", {"kubernetes": examples}).kubernetes
    assert read is not None
    assert read.namespace == "tidemark"
    with pytest.raises(InvalidSpec, match=f"known keys: {', '.join(sorted(examples))}"):
        read_spark("x.toml", {"kubernetes": {**examples, "zzzzzz": 1}})


@pytest.mark.parametrize(
    ("table", "refusal"),
    [
        ({}, "x.toml: spark.kubernetes.image: is missing; write image = "),
        ({"namespace": "Ours"}, "x.toml: spark.kubernetes.namespace: names 'Ours'; use lower-case letters"),
        ({"secrets": {"a_b": "/x"}}, "x.toml: spark.kubernetes.secrets: names 'a_b'; use lower-case letters"),
        ({"claims": {"a": "data"}}, "x.toml: spark.kubernetes.claims.a: is 'data'; write the path of a folder"),
        ({"claims": {"a": "/x"}, "secrets": {"b": "/x"}}, "spark.kubernetes.claims: and secrets have a folder twice"),
        ({"claims": {"a": "/tmp"}}, "spark.kubernetes.claims: and secrets have a folder twice, or /tmp; write another"),
    ],
)
def test_a_table_that_makes_no_pod_is_refused(table: dict[str, Any], refusal: str) -> None:
    image = {"image": "tidemark:1"} if table else {}
    with pytest.raises(InvalidSpec) as refused:
        read_spark("x.toml", {"kubernetes": {**image, **table}})
    assert refusal in str(refused.value)


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"master": "yarn"}, "spark.kubernetes: describes pods, but master is 'yarn'; leave one of them out"),
        (
            {"conf": {"spark.kubernetes.namespace": "x"}},
            'conf."spark.kubernetes.namespace": is also set by another key of this table',
        ),
    ],
)
def test_pods_have_one_master_and_one_description(more: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read_spark("x.toml", {"kubernetes": {"image": "tidemark:1"}, **more})
    assert refusal in str(refused.value)
    read_spark("x.toml", {"master": "k8s://https://api:6443", "kubernetes": {"image": "tidemark:1"}})
