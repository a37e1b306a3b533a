"""`tidemark-streams[airflow]` in each Airflow, outside of a checkout; `make environments` runs this."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packages.fresh import LOCK, PROJECT, FreshEnvironment
from packages.projects import BOTH, COUNT, WITHIN_S, awaited, beside_spark, shop

from tidemark.control.process import wait_until

pytestmark = pytest.mark.long
MARCH, OCTOBER = (PROJECT / "tests" / "constraints" / f"airflow-2026-{month}.txt" for month in ("03", "10"))
"""Versions of packages: see docs/installation.md."""
ENVIRONMENTS = [(MARCH, "3.12"), (OCTOBER, "3.13"), (LOCK, "3.11")]
DAG_FILE = """
from tidemark_airflow import topology_dags

topology_dags()
"""
DAGS = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(dag_folder=sys.argv[1])
print(json.dumps([sorted(bag.dags), {**bag.import_errors}, "pyspark" in sys.modules]))
"""
PLUGINS = """
import json
from airflow.plugins_manager import get_import_errors, get_plugin_info
print(json.dumps([sorted(plugin["name"] for plugin in get_plugin_info()), get_import_errors()]))
"""
FIRST_REPORT = """
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk.exceptions import DagRunTriggerException, TaskDeferred
from tidemark_airflow.dags.hours import FirstReport
run = SimpleNamespace(run_after=datetime(2026, 1, 1, 12, 58, tzinfo=UTC))
context = {"params": {"first_report": True}, "dag_run": run}
task = FirstReport(task_id="first", reports="hourly")
try:
    try:
        task.execute(context)
    except TaskDeferred as wait:
        due = wait.trigger.moment
        getattr(task, wait.method_name)(context, event=None)
except DagRunTriggerException as asked:
    print(getattr(asked, "run_after", None) or due, asked.conf["from"])
"""
MARKED = "tests/airflow/test_supervision.py::test_a_task_that_is_marked_leaves_no_driver"
CLEARED = "tests/airflow/test_supervision.py::test_a_cleared_task_drains_its_driver_and_launches_the_next"
TO_TEST = ("aiosmtpd", "ddsketch", "hypothesis", "networkx", "pytest", "pytest-xdist")


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, id=f"{each[0].stem}-on-{each[1]}") for each in ENVIRONMENTS],
)
def on_airflow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path
) -> FreshEnvironment:
    """An environment with the extra for Airflow: beside an Airflow that was there before, or with our lock."""
    versions, python = request.param
    folder = tmp_path_factory.mktemp("airflow")
    if versions is LOCK:
        return FreshEnvironment.of(folder, wheel, "[airflow]", python=python)
    return FreshEnvironment.beside(folder, versions, wheel, "[airflow]", python=python)


def test_airflow_lists_the_provider(on_airflow: FreshEnvironment) -> None:
    listed = json.loads(on_airflow.answer("airflow", "providers", "list", "--output", "json"))
    ours = [provider for provider in listed if provider["package_name"] == "tidemark-streams"]
    assert [provider["version"] for provider in ours] == ["0.1.0"]


def test_the_plugins_are_loaded_by_entry_point(on_airflow: FreshEnvironment) -> None:
    names, errors = json.loads(on_airflow.answer("python", "-c", PLUGINS).splitlines()[-1])
    assert {"tidemark", "tidemark_orphans"} <= {*names}
    assert errors == {}


def test_two_lines_are_the_dags_of_a_project(on_airflow: FreshEnvironment, tmp_path: Path) -> None:
    project = shop(on_airflow, tmp_path)
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "ours.py").write_text(DAG_FILE)
    ours = {"AIRFLOW__CORE__LOAD_EXAMPLES": "False", "TIDEMARK_PROJECT": str(project)}
    said = on_airflow.answer("python", "-c", DAGS, str(tmp_path / "dags"), **ours)
    # In Airflow 3.2 tasks cannot wait for people.
    version = on_airflow.answer("python", "-c", "import airflow; print(airflow.__version__)").split()[-1]
    asking = () if version.startswith("3.2.") else ("decisions",)
    parts = sorted(["daily", "reports", "sla_check", "streams", *asking])
    assert json.loads(said.splitlines()[-1]) == [[f"tidemark_shop_{part}" for part in parts], {}, False]


def test_the_first_report_waits_for_its_time(on_airflow: FreshEnvironment) -> None:
    """In Airflow 3.2 the task waits, in later ones the run."""
    said = on_airflow.answer("python", "-c", FIRST_REPORT)
    assert said.splitlines()[-1] == "2026-01-01 13:01:00+00:00 2026-01-01T13:00:00+00:00"


def test_the_oldest_airflow_ends_drivers_of_ended_tasks(tmp_path: Path, wheel: Path) -> None:
    """Airflow 3.2 does not tell a trigger of it."""
    oldest = FreshEnvironment.beside(tmp_path, MARCH, wheel, "[airflow]", *TO_TEST, python="3.12")
    # Its anyio has a plugin of pytest with a name that today's pytest deprecates, and a warning is an error here.
    said = oldest.answer(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:anyio", "-m", "long or not long",
        MARKED, CLEARED,
        folder=PROJECT, within_s=600,
    )  # fmt: skip
    assert "3 passed" in said


@pytest.mark.parametrize(
    ("versions", "python", "spark", "of_spark"),
    [
        pytest.param(LOCK, "3.11", "4.1.3", "3.11", id="one-python"),
        pytest.param(LOCK, "3.11", "4.0.4", "3.11", id="oldest-spark"),
        pytest.param(MARCH, "3.12", "4.1.3", "3.13", id="oldest-airflow-and-two-pythons"),
        pytest.param(OCTOBER, "3.13", "4.1.3", "3.13", id="october"),
        pytest.param(OCTOBER, "3.13", "4.2.0", "3.13", id="newest-of-both"),
    ],
)
def test_jobs_run_in_another_environment(
    versions: Path, python: str, spark: str, of_spark: str, tmp_path: Path, wheel: Path
) -> None:
    homes = [tmp_path / name for name in ("airflow", "spark")]
    for home in homes:
        home.mkdir()
    if versions is LOCK:
        airflow = FreshEnvironment.of(homes[0], wheel, "[airflow]", python=python)
    else:
        airflow = FreshEnvironment.beside(homes[0], versions, wheel, "[airflow]", python=python)
    if spark == "4.1.3":
        jobs = FreshEnvironment.of(homes[1], wheel, "[spark]", python=of_spark)
        jars = PROJECT / ".jars"
    else:
        jobs = FreshEnvironment.on_spark(homes[1], wheel, spark, *beside_spark(spark), python=of_spark)
        jars = tmp_path / "jars"
        jobs.answer("tidemark", "jars", str(jars))
    of_jobs = jobs.folder / "venv" / "bin" / "python"
    project = shop(airflow, tmp_path, f'\n[spark]\npython = "{of_jobs}"\n')
    if "pyspark" not in airflow.versions():  # that of March brings Spark along
        without = airflow.run("tidemark", "run", "shop", folder=project, TIDEMARK_JARS=str(jars))
        assert "pyspark is not installed; run `pip install 'tidemark-streams[spark]'`" in without.stderr
    try:
        airflow.answer("tidemark", "up", "shop", folder=project, within_s=400, TIDEMARK_JARS=str(jars))
        assert awaited(airflow, project, COUNT, BOTH) == BOTH
        assert str(of_jobs) in pythons_of_drivers(project)
        page = project / ".tidemark" / "warehouse" / "reports" / "shop" / "html" / "slas.html"
        wait_until(page.is_file, "the page that a check of SLAs writes at its end", WITHIN_S)
    finally:
        airflow.answer("tidemark", "down", folder=project, within_s=300)


def pythons_of_drivers(project: Path) -> set[str]:
    """Returns the programs that run for streams of *project*."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(file.read_text(errors="replace").split("\0"))
        except OSError:  # it has ended
            continue
    return {words[0] for words in commands if any(f"{project}/.tidemark/warehouse/control" in word for word in words)}
