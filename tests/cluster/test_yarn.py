"""Airflow launches streams on YARN; containers and a node manager are killed.

The cluster is Hadoop's own, with two nodes. Each record must be once in the table.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from support import yarn_cluster
from support.supervised_streams import NUMBERS, YARN, Stage, Supervised, staged
from support.yarn_cluster import YarnCluster
from tidemark.control import cluster_manager, process
from tidemark.local.airflow_api import ENDED, SUCCESS
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan

pytestmark = [
    pytest.mark.long,  # `tests/airflow/test_supervision_hosts.py` has the short cases, with programs in place of YARN
    pytest.mark.skipif(not yarn_cluster.JARS.is_dir(), reason="no jars of YARN: run `make yarn`"),
]
PAGE = (CHECKOUT / "docs" / "yarn.md").read_text(encoding="utf-8")
REPORT = "yarn_report"
BUILT_WITHIN_S = 600
WITHIN_S = 400.0
"""A busy node unpacks the shipped Python in a minute or two."""
LOOPBACK = {"spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1", "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1"}
"""Has drivers and executors listen on the loopback alone."""
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive with Python's packages, by the commands of the page.

    `TIDEMARK_YARN_ENV` names one that was made before.
    """
    if already := os.environ.get("TIDEMARK_YARN_ENV"):
        return Path(already)
    home = tmp_path_factory.mktemp("environment")
    for name in (".venv", "pyproject.toml", "requirements.lock"):
        (home / name).symlink_to(CHECKOUT / name)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        ["bash", "-ec", commands],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=BUILT_WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return home / "environment.tar"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    home = tmp_path_factory.mktemp("cluster") / "yarn"
    try:
        yield yarn_cluster.start(home)
    finally:
        yarn_cluster.stop(home)


def topology(environment: Path, yarn: YarnCluster) -> str:
    """Returns the page's topology with the paths of this machine."""
    (table,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    conf = {
        **LOOPBACK,
        # Otherwise each node copies 400 MB.
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent / 'jars'}/*",
        "spark.yarn.stagingDir": f"file://{yarn.home / 'staging'}",
    }
    lines = (f'"{name}" = "{value}"\n' for name, value in conf.items())
    return NUMBERS + table.replace("/data/environment.tar", str(environment)) + "".join(lines)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, environment: Path, yarn: YarnCluster) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("stage")
    for folder in ("topologies", "expectations"):
        (home / folder).mkdir()
    (home / "topologies" / "numbers.toml").write_text(topology(environment, yarn))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
        dags = CHECKOUT / "tests" / "cluster" / "dags"
        with staged(home, kinds=(YARN,), dags=dags, is_project=True) as running:
            yield running


@pytest.fixture
def stream(stage: Stage, yarn: YarnCluster, tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(stage, tmp_path, YARN)
    yield supervised
    supervised.end()
    yarn.end_containers()


def numbers(stream: Supervised) -> list[int]:
    path = Layout(stream.warehouse).stream_table("numbers", "numbers", "kept")
    return sorted(scan(path).collect()["n"].to_list()) if path.exists() else []


def wait_for(stream: Supervised, expected: list[int]) -> None:
    process.wait_until(lambda: numbers(stream) == expected, f"the numbers {expected}", WITHIN_S)


def application(stream: Supervised) -> str:
    """Returns YARN's name of the running driver."""
    beat = stream.driver.heartbeat()
    assert beat is not None
    managed = cluster_manager.recorded(stream.driver.home, beat.launch_id)
    assert managed is not None
    return managed.application


def drain(stream: Supervised, run_id: str) -> None:
    """Drains the stream; no container of its driver is left."""
    stream.drain(run_id)
    assert stream.drivers() == []


def executors(yarn: YarnCluster) -> list[tuple[int, list[str]]]:
    return [(pid, words) for pid, _, words in yarn.containers() if EXECUTOR in words and "java" in words[0]]


def test_a_stream_runs_in_containers_with_the_shipped_python(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1, 2)
    run_id = stream.run()
    wait_for(stream, [0, 1, 2])
    pid = stream.running()
    container = Path(f"/proc/{pid}/cwd").readlink()
    assert container.is_relative_to(yarn.home / yarn.node_of(pid))
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    assert words[0] == "environment/bin/python"
    # The code and the topology are those that were shipped.
    variables = dict(line.split("=", 1) for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in line)
    code = [path for path in variables["PYTHONPATH"].split(":") if Path(path).name.startswith("tidemark")]
    assert code[0] == f"{container}/tidemark-driver"
    assert (container / "tidemark-driver" / "project" / "topologies" / "numbers.toml").is_file()
    opened = Path(f"/proc/{pid}/maps").read_text()
    assert f"{CHECKOUT}/.venv/lib" not in re.sub(r".*pyspark/jars.*", "", opened)

    properties = (container / "__spark_conf__" / "__spark_conf__.properties").read_text()
    assert "spark.authenticate=true" in properties.splitlines()
    assert [["-Dspark.authenticate=true" in words for _, words in executors(yarn)]] == [[True]]

    app = application(stream)
    drain(stream, run_id)
    process.wait_until(lambda: yarn.state(app) == "FINISHED", "the end of the application", WITHIN_S)
    assert (numbers(stream), stream.epoch()) == ([0, 1, 2], 1)


def test_an_executor_that_is_killed_is_replaced(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1)
    run_id = stream.run()
    wait_for(stream, [0, 1])
    pid = stream.running()
    ((killed, _),) = executors(yarn)
    os.kill(killed, signal.SIGKILL)
    stream.put(2)
    wait_for(stream, [0, 1, 2])
    ((another, _),) = executors(yarn)
    assert (stream.running(), another != killed) == (pid, True)
    drain(stream, run_id)
    assert (numbers(stream), stream.epoch()) == ([0, 1, 2], 1)


def test_a_silent_driver_is_killed_through_yarn(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1)
    run_id = stream.run()
    wait_for(stream, [0, 1])
    pid, app = stream.running(), application(stream)
    os.kill(pid, signal.SIGSTOP)
    stream.put(2)
    wait_for(stream, [0, 1, 2])
    assert stream.running() != pid
    assert yarn.state(app) == "KILLED"
    drain(stream, run_id)
    assert (numbers(stream), stream.epoch()) == ([0, 1, 2], 2)


def test_a_driver_whose_container_is_killed_is_replaced(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1)
    run_id = stream.run()
    wait_for(stream, [0, 1])
    pid, app = stream.running(), application(stream)
    container = os.getpgid(pid)
    assert container != os.getpgid(0)
    os.killpg(container, signal.SIGKILL)
    stream.put(2)
    wait_for(stream, [0, 1, 2])
    assert stream.running() != pid
    # YARN itself has not started it a second time.
    assert yarn.state(app) == "FAILED"
    drain(stream, run_id)
    assert (numbers(stream), stream.epoch()) == ([0, 1, 2], 2)


def test_a_report_runs_in_containers_beside_the_stream(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1, 2)
    run_id = stream.run()
    wait_for(stream, [0, 1, 2])
    pid, before, api = stream.running(), yarn.finished(), stream.stage.api
    api.unpause(REPORT)
    report = api.trigger(REPORT, {"warehouse": str(stream.warehouse)})
    process.wait_until(lambda: api.run_state(REPORT, report) in ENDED, "the end of the report", WITHIN_S)
    assert api.run_state(REPORT, report) == SUCCESS, api.log(REPORT, report, "rollup")
    process.wait_until(lambda: yarn.finished() == before + 1, "the end of the report's application", WITHIN_S)
    rows = scan(Layout(stream.warehouse).report_table("numbers", "latency_rollup")).collect().to_dicts()
    of_source = [
        row for row in rows if (row["scope"], row["operator"], row["grain"]) == ("operator", "numbers", "minute")
    ]
    assert sum(row["n"] for row in of_source) == 3
    assert stream.running() == pid
    drain(stream, run_id)
    assert stream.epoch() == 1


# The last one, since it leaves one node for a while.
def test_a_stream_moves_from_a_node_whose_manager_is_killed(stream: Supervised, yarn: YarnCluster) -> None:
    stream.put(0, 1)
    run_id = stream.run()
    wait_for(stream, [0, 1])
    pid, app = stream.running(), application(stream)
    node = yarn.node_of(pid)
    try:
        yarn.kill_node(node)
        stream.put(2)
        wait_for(stream, [0, 1, 2])
        moved = stream.running(but=pid)
        assert yarn.node_of(moved) != node
        assert yarn.state(app) == "FAILED"
        drain(stream, run_id)
    finally:
        yarn.launch_node(node)
    yarn.wait_for_nodes()
    assert (numbers(stream), stream.epoch()) == ([0, 1, 2], 2)
