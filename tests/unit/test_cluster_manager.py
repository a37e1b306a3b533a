"""Drivers know their cluster manager, and answers of managers are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.control.cluster_manager import (
    _IS_GONE,
    ClusterManager,
    ManagedDriver,
    _kill_command,
    _status_command,
    managed_driver,
    record,
    recorded,
)

YARN = {"CONTAINER_ID": "container_e17_1410901177871_0001_01_000001"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "numbers-7f-driver"}


@pytest.mark.parametrize(
    ("environ", "conf", "expected"),
    [
        (
            {**YARN, "APPLICATION_WEB_PROXY_BASE": "/proxy/application_1410901177871_0001"},
            {},
            (ClusterManager.YARN, "application_1410901177871_0001"),
        ),
        (YARN, {}, None),  # an executor's container
        ({**POD, "SPARK_APPLICATION_ID": "spark-1"}, {}, (ClusterManager.KUBERNETES, "default:numbers-7f-driver")),
        (
            {**POD, "SPARK_APPLICATION_ID": "spark-1"},
            {"spark.kubernetes.namespace": "streams", "spark.kubernetes.driver.pod.name": "a-driver"},
            (ClusterManager.KUBERNETES, "streams:a-driver"),
        ),
        (POD, {"spark.kubernetes.driver.pod.name": "airflow-scheduler"}, None),  # a driver in client mode, in Airflow
        ({}, {}, None),
    ],
)
def test_a_driver_knows_the_manager_that_runs_it(
    environ: dict[str, str], conf: dict[str, str], expected: tuple[ClusterManager, str] | None
) -> None:
    found = managed_driver("l1", environ, lambda: conf)
    assert found == (None if expected is None else ManagedDriver("l1", *expected))


@pytest.mark.parametrize(
    ("answer", "gone"),
    [
        ("Application Report :\n\tState : KILLED\n\tFinal-State : KILLED", "gone"),
        ("Application Report :\n\tState : FINISHED\n\tFinal-State : SUCCEEDED", "gone"),
        ("Application Report :\n\tState : RUNNING\n\tFinal-State : UNDEFINED", "there"),
        ("Application Report :\n\tState : ACCEPTED\n\tFinal-State : FAILED", "there"),
        ("Application with id 'application_1_1' doesn't exist in RM or Timeline Server.", "gone"),
        ("Application not found.", "gone"),
        ("Application status (driver): \n\t pod name: a\n\t phase: Running", "there"),
        ("Application status (driver): \n\t pod name: a\n\t phase: Failed", "gone"),
        ("java.net.ConnectException: Connection refused", "there"),
        ("", "there"),
    ],
)
def test_only_a_final_state_means_that_a_driver_is_gone(answer: str, gone: str) -> None:
    assert ("gone" if _IS_GONE.search(answer) else "there") == gone


@pytest.mark.parametrize(
    ("submit", "program"),
    [
        ((), ["spark-class"]),
        (("spark-submit", "--master", "yarn"), ["spark-class"]),
        (("/env/bin/spark-submit",), ["env", "PYSPARK_PYTHON=/env/bin/python", "/env/bin/spark-class"]),
    ],
)
def test_yarns_client_is_that_of_the_submitting_spark(submit: tuple[str, ...], program: list[str]) -> None:
    driver = ManagedDriver("l1", ClusterManager.YARN, "application_1_2")
    client = ["org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application"]
    assert _kill_command(driver, submit) == [*program, *client, "-kill", "application_1_2"]
    assert _status_command(driver, submit) == [*program, *client, "-status", "application_1_2"]


def test_a_record_counts_for_its_launch_alone(tmp_path: Path) -> None:
    assert recorded(tmp_path, "l1") is None
    driver = ManagedDriver("l1", ClusterManager.YARN, "application_1_2")
    record(tmp_path, driver)
    assert recorded(tmp_path, "l1") == driver
    assert recorded(tmp_path, "l2") is None
