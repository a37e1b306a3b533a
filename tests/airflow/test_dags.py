"""The real DAG files, as Airflow reads them."""

import re
import subprocess
import sys
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pendulum
import pytest
from airflow._shared.module_loading.file_discovery import find_path_from_directory
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException, AirflowSkipException, DagRunTriggerException
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import StrictUndefined, Template

from support.typed_commands import commands
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.model.project.layout import Layout
from tidemark.model.project.spark_settings import SparkSettings
from tidemark.model.topology import load
from tidemark.why.walk import why
from tidemark_airflow.dags import settings as dag_settings
from tidemark_airflow.dags.hours import HourlyReportSensor
from tidemark_airflow.operators import sla as sla_tasks
from tidemark_airflow.operators.spark import BatchJob
from tidemark_airflow.operators.stream import StreamOperator

DAGS = Path(__file__).resolve().parents[2] / "dags"
PLUGINS = DAGS.with_name("plugins")
# Airflow reads .airflowignore files with a class that its own dependency has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
PARTS = ("streams", "reports", "daily", "sla_check", "decisions")
"""Without `completeness`, which only topologies with the key `complete` have."""
EXPECTED = {f"tidemark_flights_{part}" for part in (*PARTS, "completeness")}
CHECKED = ["sla_results", "expectation_results", "incidents"]
"""The tables of checks."""
WHERE = ["--warehouse", "{{ var.value.tidemark_warehouse }}", "--topology", "flights"]


@pytest.fixture(scope="module")
def dagbag() -> DagBag:
    return DagBag(dag_folder=str(DAGS))


def test_every_dag_file_can_be_imported(dagbag: DagBag) -> None:
    assert dagbag.import_errors == {}
    assert set(dagbag.dags) == EXPECTED


@pytest.mark.parametrize("syntax", ["glob", "regexp"])
def test_airflow_runs_no_file_of_the_package_under_a_name_of_its_own(syntax: str) -> None:
    assert [*PLUGINS.rglob("*.py")]
    loaded = [path for path in find_path_from_directory(PLUGINS, ".airflowignore", syntax) if path.endswith(".py")]
    assert loaded == []


@pytest.mark.parametrize("dag_id", sorted(EXPECTED))
def test_every_dag_says_whose_it_is_and_what_it_does(dagbag: DagBag, dag_id: str) -> None:
    dag = dagbag.dags[dag_id]
    assert {"tidemark", "flights"} <= set(dag.tags)
    assert {task.owner for task in dag.tasks} == {"tidemark"}
    assert "`flights`" in dag.doc_md
    assert dag.catchup is False
    # Questions to people wait beside each other, and one must not wait until the DAG is unpaused. An alert does not
    # wait for the suites of the one before.
    is_asking, is_telling = dag_id.endswith("_decisions"), dag_id.endswith("_sla_check")
    assert dag.is_paused_upon_creation is (False if is_asking else None)
    assert dag.max_active_runs == (16 if is_asking else 3 if is_telling else 1)


@pytest.mark.parametrize("dag_id", sorted(EXPECTED))
def test_every_dag_survives_the_trip_through_the_database(dagbag: DagBag, dag_id: str) -> None:
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dagbag.dags[dag_id]))
    assert again.task_dict.keys() == dagbag.dags[dag_id].task_dict.keys()


def test_a_stream_is_a_task_of_its_own(dagbag: DagBag) -> None:
    assert set(dagbag.dags["tidemark_flights_streams"].task_ids) == {"status", "carriers", "first_report"}


def test_streams_have_the_next_free_slot(dagbag: DagBag) -> None:
    tasks = [task for dag in dagbag.dags.values() for task in dag.tasks]
    streams = [task.priority_weight for task in tasks if isinstance(task, StreamOperator)]
    others = [task.priority_weight for task in tasks if not isinstance(task, StreamOperator)]
    assert {task.weight_rule for task in tasks} == {"downstream"}  # a task weighs what it and all after it do
    assert (len(streams), min(streams)) == (2, 1_000)
    assert sum(others) < min(streams)


def test_the_commands_that_why_names_for_airflow_are_valid(dagbag: DagBag, tmp_path: Path) -> None:
    topology = load(DAGS.parent / "jobs" / "topologies" / "flights.toml")
    dag = dagbag.dags["tidemark_flights_streams"]
    driver = Control(Layout(tmp_path).control("flights", "carriers"))
    remedies = []
    for state in (StreamState.DRAINED, StreamState.STARTING):
        driver.beat(Heartbeat(state=state, epoch=1, launch_id="", at_ms=1_000, pid=1))
        remedies.append(why(topology, Layout(tmp_path), at_ms=1_001, operator="flight_board")[0].remedy)
    asked = [
        get_parser().parse_args(words[1:]) for text in remedies for words in commands(text) if words[0] == "airflow"
    ]
    assert [given.dag_id for given in asked] == [dag.dag_id] * 3
    assert [given.subcommand for given in asked] == ["unpause", "trigger", "clear"]
    assert {task for task in dag.task_ids if re.findall(asked[2].task_regex, task)} == {"status"}


@pytest.mark.parametrize(
    ("started", "due", "hour"),
    [("12:07:30", "12:10:30", ("12:00:00", "13:00:00")), ("12:58:00", "13:01:00", ("13:00:00", "14:00:00"))],
)
def test_a_start_of_streams_asks_for_a_report_on_its_hour(
    dagbag: DagBag, started: str, due: str, hour: tuple[str, str]
) -> None:
    task = dagbag.dags["tidemark_flights_streams"].get_task("first_report")
    run = SimpleNamespace(run_after=datetime.fromisoformat(f"2026-01-01T{started}+00:00"))
    with pytest.raises(DagRunTriggerException) as asked:
        task.execute({"params": {"first_report": True}, "dag_run": run})
    instants = [asked.value.run_after.isoformat(), *asked.value.conf.values()]
    assert instants == [f"2026-01-01T{clock}+00:00" for clock in (due, *hour)]
    assert (asked.value.trigger_dag_id, [*asked.value.conf]) == ("tidemark_flights_reports", ["from", "to"])
    with pytest.raises(AirflowSkipException):
        task.execute({"params": {"first_report": False}, "dag_run": run})


def test_one_task_publishes_the_complete_intervals_of_a_topology(dagbag: DagBag) -> None:
    dag = dagbag.dags["tidemark_flights_completeness"]
    (task,) = dag.tasks
    assert [asset.name for asset in task.outlets] == ["tidemark/flights/status/flight_board/complete"]
    assert (type(dag.timetable).__name__, task.retries) == ("ContinuousTimetable", 5)


@pytest.mark.parametrize("source", ["the demo", "docs/complete.md"])
def test_a_consumer_is_scheduled_on_complete_intervals(source: str, tmp_path: Path) -> None:
    folder = DAGS / "examples"
    if source != "the demo":
        (code,) = re.findall(r"```python\n(.*?)```", (DAGS.parent / source).read_text(), re.DOTALL)
        (tmp_path / "page.py").write_text(code)
        folder = tmp_path
    found = DagBag(dag_folder=str(folder))
    assert found.import_errors == {}
    for dag in found.dags.values():
        known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
        assert known.timetable.partitioned
        ((key, _),) = known.timetable.asset_condition.iter_assets()
        assert key.name == "tidemark/flights/status/flight_board/complete"
    assert len(found.dags) == 1


def test_pages_show_what_was_rolled_up(dagbag: DagBag) -> None:
    reports = dagbag.dags["tidemark_flights_reports"]
    upstream = {task.task_id: task.upstream_task_ids for task in reports.tasks}
    assert upstream == {"rollup": set(), "critical_path": {"rollup"}, "judge_suites": {"critical_path"}}
    assert reports.get_task("judge_suites").trigger_rule == "all_done"
    assert reports.get_task("critical_path").application_args[-2:] == [
        "--html", "{{ var.value.tidemark_warehouse }}/reports/flights/html",
    ]  # fmt: skip


def test_the_day_is_reported_after_its_hours(dagbag: DagBag) -> None:
    daily = dagbag.dags["tidemark_flights_daily"]
    upstream = {task.task_id: task.upstream_task_ids for task in daily.tasks}
    assert upstream == {
        "hours": set(), "rollup": {"hours"}, "critical_path": {"rollup"}, "maintain": {"critical_path"},
        "done": {"critical_path", "maintain"},
    }  # fmt: skip
    assert daily.get_task("maintain").trigger_rule == "all_done"
    assert daily.get_task("hours").hourly == "tidemark_flights_reports"
    known = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(daily))
    day = known.timetable.infer_manual_data_interval(run_after=datetime(2026, 1, 2, 7, tzinfo=UTC))
    assert (day.start, day.end) == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))


class OfDay(SimpleNamespace):
    """A task whose Airflow has *going_on* runs, by their hours' starts."""

    def get_dr_count(self, dag_id: str, *, logical_dates: list[datetime], states: list[str]) -> int:
        assert (dag_id, states) == ("hourly", ["queued", "running"])
        return len(set(logical_dates) & set(self.going_on))


@pytest.mark.parametrize(("hour", "then"), [(0, "waits"), (23, "waits"), (24, "goes on")])
def test_the_day_waits_for_runs_about_hours_of_its_own_alone(hour: int, then: str) -> None:
    midnight = pendulum.datetime(2026, 1, 1)  # as Airflow gives it
    context = {
        "data_interval_start": midnight,
        "data_interval_end": midnight + timedelta(days=1),
        "ti": OfDay(going_on=[midnight + timedelta(hours=hour)]),
    }
    assert HourlyReportSensor(task_id="hours", hourly="hourly").poke(context) is (then == "goes on")


def test_a_run_without_a_data_interval_waits_for_nobody() -> None:
    assert HourlyReportSensor(task_id="hours", hourly="hourly").poke({}) is True


def test_tables_that_a_task_writes_are_its_outlets(dagbag: DagBag) -> None:
    outlets = {
        task.task_id: [asset.name.removeprefix("tidemark/flights/") for asset in task.outlets]
        for task in dagbag.dags["tidemark_flights_reports"].tasks
    }
    assert outlets == {
        "rollup": ["latency_rollup"],
        "critical_path": ["critical_paths", "critical_path_steps", "window_parts"],
        "judge_suites": [*CHECKED, "tidemark_flights_asked"],
    }
    checked = {
        task.task_id: [asset.name.removeprefix("tidemark/flights/") for asset in task.outlets]
        for task in dagbag.dags["tidemark_flights_sla_check"].tasks
    }
    assert checked["check_sla"] == [*CHECKED, "tidemark_flights_sla"]
    assert checked["judge_suites"] == CHECKED
    assert checked["publish_changes"] == ["tidemark_flights_sla"]


def test_what_the_checker_finds_is_delivered_and_judged_by_suites(dagbag: DagBag) -> None:
    check = dagbag.dags["tidemark_flights_sla_check"]
    upstream = {task.task_id: task.upstream_task_ids for task in check.tasks}
    told = {"publish_changes": {"check_sla"}, "tell_log": {"check_sla"}, "judge_suites": {"check_sla"}}
    done = {"done": {"check_sla", *told}}
    assert upstream == {"check_sla": set(), **told, **done}
    assert check.get_task("done").trigger_rule == "none_failed"
    rules = {name: check.get_task(name).trigger_rule for name in told}
    assert rules == {"tell_log": "all_done", "judge_suites": "all_done", "publish_changes": "all_failed"}
    (asset,) = check.timetable.asset_condition.objects
    assert asset.name == "tidemark_flights_asked"
    (watcher,) = asset.watchers
    kind, keys = watcher.trigger.serialize()
    assert (kind, keys) == ("tidemark_airflow.operators.checks.CheckTrigger", {"topology": "flights"})
    # Each parse of a file that names the asset without its watcher would cancel the trigger.
    asks = dagbag.dags["tidemark_flights_reports"].get_task("judge_suites").outlets[-1]
    assert (asks.name, [each.trigger.serialize() for each in asks.watchers]) == (asset.name, [(kind, keys)])


def test_slas_can_be_checked_for_a_past_instant(dagbag: DagBag) -> None:
    check = dagbag.dags["tidemark_flights_sla_check"]
    assert check.params.dump() == {"at": None}
    arguments = check.get_task("check_sla").application_args
    assert arguments[:4] + arguments[-2:] == [*WHERE, "--run-id", "{{ run_id }}"]
    at = Template(dict(pairwise(arguments))["--at"])
    asked = SimpleNamespace(run_after=datetime(2026, 1, 1, 7, tzinfo=UTC))
    assert at.render(params={"at": "2026-01-01T00:00:00Z"}, dag_run=asked) == "2026-01-01T00:00:00Z"
    assert at.render(params={"at": None}, dag_run=asked) == "2026-01-01T07:00:00+00:00"


def test_reports_cover_the_interval_of_the_run_by_default(dagbag: DagBag) -> None:
    rollup = dagbag.dags["tidemark_flights_reports"].get_task("rollup")
    start = Template(dict(pairwise(rollup.application_args))["--from"])
    of_run = datetime(2026, 1, 1, 7, tzinfo=UTC)
    given = "2026-01-01T00:00:00Z"
    assert start.render(params={"from": None}, data_interval_start=of_run) == "2026-01-01T07:00:00+00:00"
    assert start.render(params={"from": given}) == given


@pytest.mark.parametrize(("part", "since"), [("reports", "2026-01-01T06:00"), ("daily", "2025-12-31T07:00")])
def test_reports_without_a_logical_date_cover_the_time_before(dagbag: DagBag, part: str, since: str) -> None:
    arguments = dict(pairwise(dagbag.dags[f"tidemark_flights_{part}"].get_task("rollup").application_args))
    asked = SimpleNamespace(run_after=datetime(2026, 1, 1, 7, tzinfo=UTC))
    of_run = {"params": {"from": None, "to": None}, "dag_run": asked, "macros": SimpleNamespace(timedelta=timedelta)}
    said = [Template(arguments[end], undefined=StrictUndefined).render(of_run) for end in ("--from", "--to")]
    assert said == [f"{since}:00+00:00", "2026-01-01T07:00:00+00:00"]


def test_the_two_ends_of_an_interval_are_given_apart(dagbag: DagBag) -> None:
    params = deepcopy(dagbag.dags["tidemark_flights_reports"].params)
    params["from"] = "2026-01-01T00:00:00Z"
    assert params.dump() == {"from": "2026-01-01T00:00:00Z", "to": None}


def test_a_broken_topology_is_an_import_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "good.toml": dag_settings.TOPOLOGIES.joinpath("flights.toml").read_text(),
        "bad.toml": 'name = "bad"\nlevel = "loud"\n',
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(dag_settings, "TOPOLOGIES", tmp_path)
    found = DagBag(dag_folder=str(DAGS))
    assert set(found.dags) == EXPECTED
    ((file, error),) = found.import_errors.items()
    assert file.endswith("tidemark_topologies.py")
    assert "bad.toml: level" in error


def test_mistakes_in_slas_and_channels_are_one_import_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slas.toml").write_text('[flihgts.mine]\n[flights.late]\nownr = "me"\n')
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "fax"\n')
    monkeypatch.setattr(dag_settings, "SLAS", tmp_path / "slas.toml")
    monkeypatch.setattr(sla_tasks, "CHANNELS", tmp_path / "channels.toml")
    found = DagBag(dag_folder=str(DAGS))
    assert set(found.dags) == EXPECTED
    ((file, error),) = found.import_errors.items()
    assert file.endswith("tidemark_topologies.py")
    assert "slas.toml: flihgts: is not a topology; did you mean flights?\n" in error
    assert "slas.toml: flights.late.ownr: is not a valid key here; did you mean owner?\n" in error
    assert "channels.toml: desk.kind: is 'fax'" in error


def test_a_topology_file_is_all_it_takes_to_get_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = DAGS.parent / "tests" / "streaming" / "topologies" / "orders.toml"
    (tmp_path / "orders.toml").write_text(f'owner = "shop"\n{orders.read_text()}')
    monkeypatch.setattr(dag_settings, "TOPOLOGIES", tmp_path)
    found = DagBag(dag_folder=str(DAGS))
    assert {dag_id: dag.owner for dag_id, dag in found.dags.items()} == {f"tidemark_orders_{p}": "shop" for p in PARTS}
    assert set(found.dags["tidemark_orders_streams"].task_ids) == {"pricing", "regions", "products", "first_report"}


def test_the_slas_of_jobs_get_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slas = 'subject = "enrich"\nmeasure = "watermark_lag"\nerror_after = "5 min"\nowner = "shop"\n'
    (tmp_path / "slas.toml").write_text(f"[shop]\nrecorded = true\n[shop.enrich_keeps_up]\n{slas}")
    monkeypatch.setattr(dag_settings, "SLAS", tmp_path / "slas.toml")
    found = DagBag(dag_folder=str(DAGS))
    assert not found.import_errors
    parts = ("sla_check", "reports", "daily")
    assert {*found.dags} == EXPECTED | {f"tidemark_shop_{part}" for part in parts}
    check = found.dags["tidemark_shop_sla_check"].get_task("check_sla")
    assert check.application_args[2:4] == ["--topology", "shop"]


def test_all_watched_tables_have_one_dag_of_alerts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = "".join(f'[watch.{name}]\ntables = ["/data/{name}"]\nowner = "{name} team"\n' for name in ("silver", "gold"))
    slas = "".join(
        f'[watch.{name}_is_fresh]\nsubject = "{name}.orders"\nerror_after = "1 h"\n' for name in ("silver", "gold")
    )
    (tmp_path / "slas.toml").write_text(sets + slas)
    monkeypatch.setattr(dag_settings, "SLAS", tmp_path / "slas.toml")
    found = DagBag(dag_folder=str(DAGS))
    assert not found.import_errors
    assert {*found.dags} == EXPECTED | {f"tidemark_watch_{part}" for part in ("sla_check", "reports", "daily")}
    check = found.dags["tidemark_watch_sla_check"]
    assert {"check_sla", "tell_log", "judge_suites", "publish_changes", "done"} == {*check.task_ids}
    assert check.get_task("check_sla").application_args[2:4] == ["--topology", "watch"]
    (asset,) = check.timetable.asset_condition.objects
    ((_, keys),) = [watcher.trigger.serialize() for watcher in asset.watchers]
    assert keys == {"topology": "watch"}
    # There are no streams to report on.
    assert found.dags["tidemark_watch_reports"].task_ids == ["judge_suites"]
    assert found.dags["tidemark_watch_daily"].task_ids == ["maintain"]


def test_a_set_without_slas_has_no_dag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slas.toml").write_text('[watch.silver]\ntables = ["/data/silver"]\n')
    monkeypatch.setattr(dag_settings, "SLAS", tmp_path / "slas.toml")
    found = DagBag(dag_folder=str(DAGS))
    assert (found.import_errors, {*found.dags}) == ({}, EXPECTED)


def test_parsing_the_dags_imports_few_modules_and_no_slow_one() -> None:
    # "More" is beside what the DAG processor has imported before it forks a process to parse a file.
    code = """
import sys
from importlib import import_module
from pathlib import Path
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import DagBag
from airflow.utils.file import iter_airflow_imports
for file in Path(sys.argv[1]).glob("*.py"):
    for module in iter_airflow_imports(str(file)):
        import_module(module)
before = set(sys.modules)
bag = DagBag(dag_folder=sys.argv[1])
assert len(bag.dags) == 6, bag.import_errors
roots = {name.split(".")[0] for name in sys.modules}
heavy = {"pyspark", "great_expectations", "deltalake", "duckdb", "polars", "pyarrow", "pandas", "numpy", "fastapi"}
print(sorted(heavy & roots), len(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code, str(DAGS)], capture_output=True, text=True, check=True)
    heavy, more = done.stdout.splitlines()[-1].rsplit(" ", 1)
    assert heavy == "[]"
    # Each of these is small: an operator kind, a measure, a set of keys and a rule is a file. Joined into fewer files,
    # they took no less CPU time. A module that is slow is named above.
    assert int(more) <= 161


def test_a_batch_job_refuses_an_unknown_connection() -> None:
    with pytest.raises(AirflowException, match="no_such_cluster"):
        BatchJob(task_id="rollup", job="rollup", spark=SparkSettings(), conn_id="no_such_cluster").execute({})


def test_no_task_that_tells_of_incidents_runs_without_end(dagbag: DagBag) -> None:
    tasks = dagbag.dags["tidemark_flights_sla_check"].tasks
    telling = {task.task_id: task.execution_timeout for task in tasks if task.task_id.startswith(("tell_", "publish"))}
    assert {"tell_log", "publish_changes"} <= telling.keys()
    assert set(telling.values()) == {timedelta(minutes=15)}
