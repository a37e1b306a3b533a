"""The command lines by which Airflow gives jobs to Spark."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import Project
from tidemark.model.project.spark_settings import SPARK_NEEDED, SparkSettings, read_spark
from tidemark_airflow.operators import spark as spark_tasks
from tidemark_airflow.operators.spark import COMMIT_NOTE, NOTE_RUN, BatchJob, DriverHook
from tidemark_airflow.operators.stream import StreamOperator


@pytest.fixture(autouse=True)
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spark_tasks, "LIBRARIES", tmp_path)
    return tmp_path


def options(command: Sequence[str]) -> dict[str, str]:
    """Returns values by option, and properties by name."""
    pairs = list(pairwise(command))
    properties = dict(value.split("=", 1) for option, value in pairs if option == "--conf")
    return {option: value for option, value in pairs if option.startswith("--")} | properties


def submitted(settings: SparkSettings) -> dict[str, str]:
    return options(DriverHook(spark=settings, conn_id="spark_default").command("job.py"))


def test_without_settings_the_connections_master_gets_no_code() -> None:
    found = submitted(SparkSettings())
    assert (found["--master"], found["spark.driver.host"]) == ("local[2]", "127.0.0.1")
    assert "--py-files" not in found


def test_a_topology_names_another_master_and_its_executors(libraries: Path) -> None:
    found = submitted(read_spark("x.toml", {"master": "spark://elsewhere:7077", "executors": 2, "memory": "3g"}))
    assert found["--master"] == "spark://elsewhere:7077"
    assert (found["spark.cores.max"], found["spark.executor.memory"]) == ("2", "3g")
    assert "spark.driver.host" not in found


def connect(monkeypatch: pytest.MonkeyPatch, master: str, deploy: str | None) -> None:
    extra = {} if deploy is None else {"deploy-mode": deploy}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master, "extra": extra}))


@pytest.mark.parametrize(
    ("connected", "table", "deploy"),
    [
        (("yarn", "client"), {}, "client"),
        (("yarn", "client"), {"deploy": "cluster"}, "cluster"),
        (("yarn", "cluster"), {}, "cluster"),
        (("yarn", "cluster"), {"deploy": "client"}, "client"),
        (("yarn", "cluster"), {"master": "local[2]", "deploy": "client"}, "client"),
        (("yarn", None), {}, None),
        (("local[2]", "client"), {"master": "yarn", "deploy": "cluster"}, "cluster"),
    ],
)
def test_the_table_spark_decides_before_the_connection(
    libraries: Path,
    monkeypatch: pytest.MonkeyPatch,
    connected: tuple[str, str | None],
    table: dict[str, str],
    deploy: str | None,
) -> None:
    connect(monkeypatch, *connected)
    found = submitted(read_spark("x.toml", table))
    assert (found["--master"], found.get("--deploy-mode")) == (table.get("master", connected[0]), deploy)


def test_a_driver_elsewhere_gets_no_option_of_this_host(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "yarn", "client")
    assert "spark.driver.extraJavaOptions" in submitted(read_spark("x.toml", {}))
    assert "spark.driver.extraJavaOptions" not in submitted(read_spark("x.toml", {"deploy": "cluster"}))


@pytest.mark.parametrize(
    ("connected", "table", "refusal"),
    [
        (
            ("spark://a:7077", "client"),
            {"deploy": "cluster"},
            "[spark] deploy is 'cluster', but Spark starts no Python driver in a standalone cluster (spark://a:7077); "
            'write deploy = "client", or master = "yarn" or "k8s://…", in the topology\'s file',
        ),
        (
            ("local[2]", "client"),
            {"deploy": "cluster"},
            "[spark] deploy is 'cluster', but the driver of a local master is on the host that starts it (local[2]); "
            'write deploy = "client", or master = "yarn" or "k8s://…", in the topology\'s file',
        ),
        (
            ("yarn", "cluster"),
            {"master": "spark://a:7077"},
            "deploy-mode of the connection spark_default is 'cluster', but Spark starts no Python driver in a "
            'standalone cluster (spark://a:7077); write deploy = "client", or master = "yarn" or "k8s://…", '
            "in the topology's file",
        ),
    ],
)
def test_a_cluster_that_runs_no_python_drivers_is_refused(
    monkeypatch: pytest.MonkeyPatch, connected: tuple[str, str], table: dict[str, str], refusal: str
) -> None:
    connect(monkeypatch, *connected)
    with pytest.raises(InvalidArgument) as refused:
        submitted(read_spark("x.toml", table))
    assert str(refused.value) == refusal


def test_pods_of_a_topology_change_nothing_elsewhere(libraries: Path) -> None:
    pods = {"kubernetes": {"image": "tidemark:1", "namespace": "tidemark"}}
    assert submitted(read_spark("x.toml", pods)) == submitted(read_spark("x.toml", {}))
    assert list(libraries.iterdir()) == []


def test_yarn_starts_a_driver_once(libraries: Path) -> None:
    """The first attempt removes the file of secrets."""
    assert submitted(SparkSettings(master="yarn"))["spark.yarn.maxAppAttempts"] == "1"
    assert "spark.yarn.maxAppAttempts" not in submitted(SparkSettings())
    with pytest.raises(InvalidSpec, match='maxAppAttempts": is reserved for Tidemark; leave it out'):
        read_spark("x.toml", {"conf": {"spark.yarn.maxAppAttempts": "2"}})


def test_a_driver_on_yarn_gets_the_files_of_its_project(libraries: Path) -> None:
    conf = {"spark.yarn.dist.archives": "/data/environment.tar#environment"}
    spark = read_spark("x.toml", {"master": "yarn", "deploy": "cluster", "conf": conf})
    found = submitted(spark)
    (archive,) = libraries.glob("driver-*.zip")
    assert found["spark.yarn.dist.archives"] == f"/data/environment.tar#environment,{archive}#tidemark-driver"
    assert found["spark.yarn.appMasterEnv.PYTHONPATH"] == "{{PWD}}/tidemark-driver"
    assert found["spark.yarn.appMasterEnv.TIDEMARK_PROJECT"] == "{{PWD}}/tidemark-driver/project"
    hook, folder = DriverHook(spark=spark, conn_id="spark_default"), Project.here().topologies
    assert hook.file(folder / "flights.toml") == "tidemark-driver/project/topologies/flights.toml"
    assert hook.file(Path("/data/mine.toml")) == "/data/mine.toml"
    here = DriverHook(spark=SparkSettings(master="yarn"), conn_id="spark_default")
    assert here.file(folder / "flights.toml") == str(folder / "flights.toml")
    assert "spark.yarn.dist.archives" not in submitted(SparkSettings(master="yarn"))


def test_a_job_that_is_ended_ends_on_yarn_too(
    libraries: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "spark-submit").write_text("#!/bin/sh\necho Submitted application application_17_0042\n")
    (folder / "spark-class").write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\nprintf "\\tState : KILLED\\n"\n')
    for program in folder.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    hook = DriverHook(spark=read_spark("x.toml", {"master": "yarn", "deploy": "cluster"}), conn_id="spark_default")
    hook.submit("rollup.py")
    hook._submit_sp.stdout.close()  # the provider leaves it open
    hook.on_kill()
    client = "org.apache.hadoop.yarn.client.cli.ApplicationCLI application"
    expected = [f"{client} -kill application_17_0042", f"{client} -status application_17_0042"]
    assert (folder / "asked").read_text().splitlines() == expected


def test_containers_of_yarn_have_room_for_python(libraries: Path) -> None:
    factors = [f"spark.{role}.memoryOverheadFactor" for role in ("driver", "executor")]
    found = submitted(SparkSettings(master="yarn"))
    assert [found[name] for name in factors] == ["1.0", "1.0"]
    found = submitted(read_spark("x.toml", {"master": "yarn", "conf": {factors[0]: "0.5"}}))
    assert [found[name] for name in factors] == ["0.5", "1.0"]


def test_executors_on_other_machines_get_the_library(libraries: Path) -> None:
    found = submitted(SparkSettings(master="spark://elsewhere:7077"))
    assert [Path(found["--py-files"])] == list(libraries.glob("tidemark-*.zip"))


def test_a_batch_job_with_variables_is_refused_with_a_remedy() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot have env_vars; use \[spark.conf\]"):
        BatchJob(task_id="rollup", job="rollup", spark=read_spark("x.toml", {}), env_vars={"PASSWORD": "x"})


def test_a_batch_job_is_submitted_with_its_topologys_settings() -> None:
    settings = read_spark("x.toml", {"master": "local[4]", "driver_memory": "3g"})
    job = BatchJob(task_id="rollup", job="rollup", spark=settings, conf={"spark.ui.port": "1"}, application_args=["x"])
    hook = job._get_hook()
    assert isinstance(hook, DriverHook)
    command = hook.command(job.application)
    found = options(command)
    assert (found["--master"], found["spark.driver.memory"], found["spark.ui.port"]) == ("local[4]", "3g", "1")
    assert command[-2:] == [spark_tasks.script("rollup"), "x"]


TI = SimpleNamespace(dag_id="load", task_id="rollup", run_id="r 1", try_number=1)
NOTE = {"dag_id": "load", "task_id": "rollup", "run_id": "r 1"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the provider leaves a pipe open
def test_commits_of_a_job_that_spark_runs_name_its_run(submitted_to: Path, tmp_path: Path) -> None:
    arguments = tmp_path / "arguments"
    (tmp_path / "bin" / "spark-submit").write_text(f'#!/bin/sh\nfor each; do echo "$each"; done >> {arguments}\n')
    job_of(tmp_path, f"sys.exit({SPARK_NEEDED})").execute({"ti": TI})
    assert json.loads(options(arguments.read_text().splitlines())[COMMIT_NOTE]) == NOTE


def test_commits_of_a_teams_stream_name_its_run_if_nobody_gave_them_another_note(tmp_path: Path) -> None:
    def note(**of_user: str) -> str:
        job = {"application": str(tmp_path / "job.py"), "warehouse": str(tmp_path / "warehouse")}
        task = StreamOperator(task_id="rollup", **job, spark_conf=of_user)
        task._remember_run({"ti": TI}, task._driver())
        return options(task._command())[COMMIT_NOTE]

    assert json.loads(note()) == NOTE
    assert note(**{COMMIT_NOTE: "mine"}) == "mine"


@pytest.mark.parametrize("is_native", [False, True])
def test_a_task_of_the_spark_provider_names_its_run_by_one_line(*, is_native: bool) -> None:
    with DAG("load", schedule=None, render_template_as_native_obj=is_native):
        task = SparkSubmitOperator(task_id="rollup", application="job.py", conf={**NOTE_RUN, "spark.ui.port": "1"})
    task.render_template_fields({"ti": TI})
    assert json.loads(options(task._get_hook()._build_spark_submit_command("job.py"))[COMMIT_NOTE]) == NOTE


@pytest.fixture
def submitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file that a fake spark-submit on the path writes."""
    binary, file = tmp_path / "bin" / "spark-submit", tmp_path / "submitted"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nfor each; do case "$each" in *.py) echo "$each" >> {file};; esac; done\n')
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return file


def job_of(tmp_path: Path, code: str, spark: Mapping[str, str] = MappingProxyType({})) -> BatchJob:
    settings = read_spark("x.toml", spark)
    job = BatchJob(task_id="rollup", job="rollup", spark=settings, application_args=["--from", "noon"])
    script = tmp_path / "job.py"
    script.write_text(f"import os, sys\n{code}\n")
    job.application = str(script)
    return job


def test_a_batch_job_runs_without_spark_and_airflows_environment(
    tmp_path: Path, submitted_to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BANK", "secret")
    out = tmp_path / "out"
    code = f"open({str(out)!r}, 'w').write(' '.join(sys.argv[1:]) + str('AIRFLOW_CONN_BANK' in os.environ))"
    job_of(tmp_path, code).execute({})
    assert out.read_text() == "--from noonFalse"
    assert not submitted_to.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the provider leaves a pipe open
def test_a_batch_job_that_needs_spark_is_submitted(tmp_path: Path, submitted_to: Path) -> None:
    job = job_of(tmp_path, "from tidemark.spark_session import session\nsession('rollup')")
    job.execute({})
    assert submitted_to.read_text().split() == [job.application]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the provider leaves a pipe open
@pytest.mark.parametrize("named", [None, "/local/disk"])
def test_a_submitted_job_has_a_private_folder_for_its_files(
    tmp_path: Path, submitted_to: Path, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", named or "")
    binary = submitted_to.parent / "bin" / "spark-submit"
    binary.write_text(f'#!/bin/sh\necho "$SPARK_LOCAL_DIRS" "$(stat -c %a "$SPARK_LOCAL_DIRS")" > {submitted_to}\n')
    job = job_of(tmp_path, "from tidemark.spark_session import session\nsession('rollup')")
    job.execute({})
    folder, *mode = submitted_to.read_text().split()
    if named:
        assert folder == named
    else:
        assert (Path(folder).name.startswith("tidemark-spark-"), mode) == (True, ["700"])
        assert not Path(folder).exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the provider leaves a pipe open
def test_a_batch_job_of_drivers_elsewhere_is_submitted_at_once(
    tmp_path: Path, submitted_to: Path, libraries: Path
) -> None:
    job = job_of(tmp_path, "sys.exit('not here')", {"master": "yarn", "deploy": "cluster"})
    job.execute({})
    assert submitted_to.read_text().split() == [job.application]


def test_a_batch_job_that_fails_is_not_submitted(tmp_path: Path, submitted_to: Path) -> None:
    with pytest.raises(AirflowException, match=r"job\.py ended with status 3; its output above has the reason"):
        job_of(tmp_path, "sys.exit(3)").execute({})
    assert not submitted_to.exists()


@pytest.mark.parametrize(
    ("settings", "python"),
    [
        ({}, "/env/python"),
        ({"conf": {"spark.pyspark.python": "/conf/python"}}, "/conf/python"),
        ({"conf": {"spark.pyspark.python": "/a", "spark.pyspark.driver.python": "/driver/python"}}, "/driver/python"),
    ],
)
def test_a_batch_job_has_the_python_that_spark_would_choose(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, dict[str, str]], python: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/env/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    assert DriverHook(spark=read_spark("x.toml", settings), conn_id="spark_default").python == python


@pytest.fixture
def another(tmp_path: Path) -> Path:
    """Returns the Python of another environment, which has Spark."""
    binaries = tmp_path / "spark" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "spark-submit").touch()
    (binaries / "python").symlink_to(sys.executable)
    return binaries / "python"


def test_another_environment_has_the_spark_of_jobs(another: Path) -> None:
    hook = DriverHook(spark=read_spark("x.toml", {"python": str(another)}), conn_id="spark_default")
    command = hook.command("job.py")
    assert command[0] == str(another.with_name("spark-submit"))
    found = options(command)
    assert (found["spark.pyspark.driver.python"], found["spark.pyspark.python"]) == (str(another), str(another))
    assert hook.python == str(another)


def test_a_job_gets_no_spark_of_airflows_environment(another: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AIRFLOW_CONN_BANK", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYTHONPATH", "SPARK_HOME"):
        monkeypatch.setenv(name, "/airflow")
    env = spark_tasks.job_environment(read_spark("x.toml", {"python": str(another)}))
    assert {name: value for name, value in env.items() if value == "/airflow"} == {}
    assert env["PYSPARK_PYTHON"] == str(another)
    kept = spark_tasks.job_environment(SparkSettings())
    assert (kept["SPARK_HOME"], "AIRFLOW_CONN_BANK" in kept) == ("/airflow", False)


def test_an_environment_without_spark_is_refused(another: Path) -> None:
    another.with_name("spark-submit").unlink()
    hook = DriverHook(spark=read_spark("x.toml", {"python": str(another)}), conn_id="spark_default")
    missing = r"bin/spark-submit does not exist; install 'tidemark-streams\[spark\]' for /"
    with pytest.raises(InvalidArgument, match=missing):
        hook.command("job.py")
