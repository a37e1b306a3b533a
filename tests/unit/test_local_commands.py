"""Output of `tidemark up` and its companions where nothing runs."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import polars as pl
import pytest

from support.command_line import tidemark
from support.topologies import sink, source, topology_of
from tidemark.cli.explain.status import as_text
from tidemark.cli.local import down, topic
from tidemark.cli.local import up as up_command
from tidemark.cli.local.up import StackStart
from tidemark.cli.project.init import init
from tidemark.cli.repair import accept_loss, reset_time
from tidemark.cli.repair.requeue import _chosen
from tidemark.cli.shared.local import AirflowApi, Home, InstallationState, program, writable_home
from tidemark.control.folder import Control, Heartbeat, StreamState
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.local.stack import dag_folders
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.recorded_jobs.queries import RecordedQuery, write_query

pytestmark = pytest.mark.slow

CODE = "import sys; from tidemark.cli.main import main; sys.exit(main())"
TOML = topology_of(
    {"name": "{name}"},
    events=source(fields="id string, at bigint", sub_topology="reading", timestamp="at", max_ahead=None),
    board=sink("events", table="board"),
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Creates a project with two valid topologies and an invalid one.

    The valid ones are `mine` and `yours`.
    """
    made = init(tmp_path / "project")
    for name in ("mine", "yours"):
        (made.topologies / f"{name}.toml").write_text(TOML.format(name=name))
    (made.topologies / "broken.toml").write_text("name = 3")
    return made


def test_status_is_there_before_anything_runs(project: Project) -> None:
    said = tidemark(project.folder, "status")
    rows = [line.split() for line in said.stdout.splitlines() if "/reading" in line]
    assert rows == [["mine/reading", "never_started", "0", "-", "-"], ["yours/reading", "never_started", "0", "-", "-"]]
    assert "broken.toml: name" in said.stdout
    warehouse = project.state / "warehouse"
    looked = f"looked into the warehouse {warehouse}: there is no such folder; --warehouse names another one\n"
    assert (said.returncode, said.stderr) == (1, looked)
    warehouse.mkdir(parents=True)
    assert "no stream has run there" in tidemark(project.folder, "status").stderr
    (found,) = json.loads(tidemark(project.folder, "status", "mine", "--format", "json").stdout)["topologies"]
    assert (found["verdict"], found["page"], found["streams"][0]["first_latency_ms"]) == ("not_running", None, None)


@pytest.mark.parametrize(
    ("verdict", "slas", "cause", "line"),
    [
        ("broken", ("a warn", "b error"), "all_filtered", "broken: b: b is late; with a warning: a"),
        ("warn", ("a warn", "b warn"), "all_filtered", "warn: a: a is late; also with a warning: b"),
        # That a stream was drained is told beside the SLA, as it does not run.
        ("broken", ("b error",), "drained", "broken: b: b is late; it was seen; act"),
        ("warn", ("a warn",), None, "warn: a: a is late"),
        ("broken", ("b error", "c pass"), "driver_dead", "broken: b: b is late; it was seen; act"),
        ("late", ("a pass",), "unexplained", "late: board: it was seen; act"),
        ("quiet", ("a pass",), "source_quiet", "quiet: events: it was seen; act"),
        ("on_time", (), None, "on_time"),
        (
            "not_checked",
            (),
            None,
            "not_checked: its SLAs were not checked yet: the DAG tidemark_t_sla_check does so, unless it is paused",
        ),
        ("not_checked", ("a pass",), None, "not_checked: the newest check measured no SLA about the age of results"),
    ],
)
def test_status_shows_the_reason_of_the_verdict(verdict: str, slas: tuple[str, ...], cause: str, line: str) -> None:
    rows = [{"sla": name, "verdict": found, "message": f"{name} is late"} for name, found in map(str.split, slas)]
    place = {"operator": "board", "input": "events" if cause == "source_quiet" else None, "partition": None}
    place |= {"owner": None}
    finding = {"cause": cause, "seen": "it was seen", "remedy": "act", **place} if cause else None
    stream = {"sub_topology": "s", "state": "running", "records_in": 1, "first_latency_ms": None, "ambiguous_keys": 2}
    model = {"topology": "t", "page": None, "streams": [stream], "verdict": verdict}
    model["state"] = "drained" if cause == "drained" else "running"
    text = as_text([{**model, "slas": {"rows": rows, "checked_at": None, "is_overdue": not rows}, "cause": finding}])
    keys = (
        "t/s: 2 keys with several rows in Delta tables that it joins; the smallest row is used, and the driver's log "
    )
    assert text.splitlines()[-2:] == [f"t: {line}", f"{keys}names the tables"]


def test_sql_of_topologies_shows_no_progress_bar() -> None:
    # In `python -c` DuckDB shows one for a query of more than 2 s, and JSON of a command would not parse.
    code = "from tidemark.kernels.sql.expressions import _connection as c; print(c().sql(QUERY).fetchall())"
    query = "SELECT current_setting('enable_progress_bar')"
    command = [sys.executable, "-c", code.replace("QUERY", repr(query))]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": ""})
    assert answer.stdout == "[(False,)]\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("restart mine/reading", "nothing runs in {home}; `tidemark up mine` starts its streams"),
        ("restart mine/0", "a stream is named TOPOLOGY/STREAM, got 'mine/0'; known: mine/reading"),
        ("logs mine", "mine/reading has no log in {home}/warehouse/control/mine/reading; `tidemark up mine` starts it"),
        ("topic create events --partitions 0", "--partitions: must be 1 or more, got 0"),
    ],
)
def test_where_nothing_runs_the_remedy_is_a_command(project: Project, command: str, said: str) -> None:
    answer = tidemark(project.folder, *command.split())
    expected = said.format(home=project.state)
    assert (answer.returncode, answer.stderr) == (1, f"tidemark {command.split()[0]}: {expected}\n")


def test_down_where_nothing_runs_is_done_at_once(project: Project) -> None:
    assert tidemark(project.folder, "down").stdout == f"nothing runs in {project.state}\n"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A warehouse with two streams of `mine`, whose drivers another Airflow has launched.

    That of `reading` ends when it is asked to.
    """
    warehouse = tmp_path / "elsewhere"
    driver, stuck = (Control(warehouse / "control" / "mine" / name) for name in ("reading", "stuck"))
    for control in (driver, stuck):
        control.acquire()
    driver.beat(Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="1", at_ms=0, pid=7, host="h", doing="batch 3"))
    is_over = threading.Event()

    def end_when_asked() -> None:
        while not is_over.wait(0.02):
            if driver.drain_requested():
                driver.release()
                return

    thread = threading.Thread(target=end_when_asked)
    thread.start()
    yield warehouse
    is_over.set()
    thread.join()
    driver.release()
    stuck.release()


def test_down_drains_streams_that_were_launched_elsewhere(
    project: Project, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(down, "AFTER_TRIGGER_S", 1.0)
    place = ("--warehouse", str(elsewhere))
    all_of_them = tidemark(project.folder, *place, "down")
    assert (all_of_them.returncode, all_of_them.stdout) == (
        1,
        f"nothing runs in {project.state}\n"
        "mine/reading still has a driver on h, process 7, stuck: batch 3\n"
        "mine/stuck still has a driver\n"
        f"`tidemark --warehouse {elsewhere} down mine` drains what writes to {elsewhere}, wherever it was launched\n",
    )
    drained = tidemark(project.folder, *place, "down", "mine")
    assert drained.returncode == 1
    assert "draining mine/reading, mine/stuck" in drained.stdout
    assert drained.stdout.endswith(
        "mine/stuck still has a driver\n"
        "they were asked to end 2 s ago, and end after their batch; `tidemark status` shows it\n"
    )
    assert "mine/reading still has a driver" not in drained.stdout
    assert Control(elsewhere / "control" / "mine" / "reading").drained_by() == "tidemark down"
    none = tidemark(project.folder, *place, "down", "yours")
    assert (none.returncode, none.stdout) == (0, f"no stream of yours runs in {elsewhere}\n")
    unknown = tidemark(project.folder, *place, "down", "theirs")
    assert unknown.stderr == "tidemark down: there is no topology theirs; known: mine, yours\n"


def test_a_project_of_the_environment_is_named(project: Project, tmp_path: Path) -> None:
    other = init(tmp_path / "other")
    answer = tidemark(project.folder, "down", TIDEMARK_PROJECT=str(other.folder))
    assert (
        answer.stderr == f"$TIDEMARK_PROJECT names the project {other.folder}: that of {project.folder} is not used\n"
    )
    assert tidemark(other.folder, "down", TIDEMARK_PROJECT=str(other.folder)).stderr == ""


def test_a_log_is_shown_from_its_end(project: Project) -> None:
    control = project.state / "warehouse" / "control" / "mine" / "reading"
    control.mkdir(parents=True)
    (control / "driver.log").write_text("one\ntwo\nthree\n")
    assert tidemark(project.folder, "logs", "mine", "-n", "2").stdout == "two\nthree\n"


def test_a_log_is_followed_until_it_is_gone(project: Project) -> None:
    log = project.state / "warehouse" / "control" / "mine" / "reading" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    command = [sys.executable, "-c", CODE, "logs", "mine", "-f"]
    with subprocess.Popen(
        command, cwd=project.folder, stdout=subprocess.PIPE, text=True, env={"PATH": ""}
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        with log.open("a") as file:
            file.write("two\n")
        assert following.stdout.readline() == "two\n"
        log.unlink()
        assert following.wait(30) == 0


def test_up_without_names_starts_what_ran_at_the_last_down(project: Project) -> None:
    home = Home(project.state)
    first = StackStart(home, project)
    assert list(first.chosen([])) == ["mine", "yours"]
    assert first.problems["broken"].startswith("broken.toml: name")
    remembered = InstallationState()
    remembered.started(["mine", "yours"])
    remembered.stopped(["mine"])
    remembered.stopped(["yours"])
    remembered.stopped([])  # only Kafka and Airflow were left
    remembered.keep(home)
    again = StackStart(home, project)
    assert (list(again.chosen([])), again.problems) == (["yours"], {})


def test_up_without_names_skips_a_topology_without_a_file(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(project.state)
    remembered = InstallationState(ran=["gone", "mine"])
    remembered.keep(home)
    up = StackStart(home, project)
    assert (list(up.chosen([])), up.problems) == (["mine"], {})
    assert capsys.readouterr().err == f"gone ran before, but has no file in {project.topologies} any more\n"


def test_a_topology_that_is_not_there_does_not_stop_the_others(project: Project) -> None:
    up = StackStart(Home(project.state), project)
    assert list(up.chosen(["nowhere", "mine"])) == ["mine"]
    assert up.problems["nowhere"].startswith(f"no such topology in {project.topologies}; known: broken, mine, yours")
    with pytest.raises(InvalidArgument, match="nowhere: no such topology"):
        StackStart(Home(project.state), project).chosen(["nowhere"])


class SlowAirflow(AirflowApi):
    """An Airflow without DAGs for the first *refused* requests."""

    def __init__(self, refused: int) -> None:
        self._refused = refused

    def has_dag(self, dag_id: str) -> bool:
        self._refused -= 1
        return self._refused < 0


class OpenAirflow(AirflowApi):
    """An Airflow that notes which DAGs are unpaused and triggered."""

    def __init__(self) -> None:
        self.unpaused: list[str] = []
        self.triggered: list[str] = []

    def is_paused(self, dag_id: str) -> bool:
        return dag_id not in self.unpaused

    def unpause(self, dag_id: str) -> None:
        self.unpaused.append(dag_id)

    def trigger(self, dag_id: str, conf: dict[str, Any]) -> str:
        self.triggered.append(dag_id)
        return "a run"


@pytest.mark.parametrize("has_run", [False, True])
def test_up_unpauses_the_dags_of_jobs(project: Project, *, has_run: bool) -> None:
    for file in project.topologies.glob("*.toml"):
        file.unlink()
    project.slas.write_text("[shop]\nrecorded = true\n")
    home, airflow = Home(project.state), OpenAirflow()
    if has_run:
        write_query(Layout(home.warehouse), "shop", RecordedQuery(name="enrich", query_id="1"))
    up = StackStart(home, project)
    chosen = up.with_topics(up.chosen([]))
    assert up.launch(airflow, chosen) == {}
    up.check(airflow, chosen)
    assert home.warehouse.is_dir()  # batch jobs refuse a missing one
    parts = ("reports", "sla_check", "daily")
    assert airflow.unpaused == [f"tidemark_shop_{part}" for part in parts]
    assert airflow.triggered == (["tidemark_shop_sla_check"] if has_run else [])
    assert [each.name for each in up.with_queries(chosen)] == (["shop"] if has_run else [])
    assert "has no topology" not in tidemark(project.folder, "check").stdout
    if has_run:
        (Layout(home.warehouse).control("shop", "enrich") / "query.json").write_text("{}")
        assert up.with_queries(chosen) == []
        assert "enrich" in up.problems["shop"]


def test_up_starts_no_jobs_in_the_place_of_an_invalid_file(project: Project) -> None:
    (project.topologies / "broken.toml").write_text('name = "bakery"\nwindow = 3\n')
    project.slas.write_text("[bakery]\nrecorded = true\n")
    up = StackStart(Home(project.state), project)
    assert list(up.chosen(["mine", "bakery"])) == ["mine"]
    assert [*up.problems] == ["bakery"]


def test_airflow_reads_the_dag_files_of_a_project(project: Project) -> None:
    def read(project: Project) -> list[str]:
        return [each["kwargs"].get("path", "") for each in json.loads(dag_folders(project, examples=False))]

    assert read(project) == [""]
    own = project.folder / "dags"
    own.mkdir()
    assert (read(project), read(Project(CHECKOUT))) == (["", str(own)], [""])


def test_up_shows_for_which_topologies_it_waits(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up_command, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(up_command, "POLL_S", 0.0)
    up = StackStart(Home(project.state), project)
    assert list(up.with_dags(SlowAirflow(3), up.chosen(["mine", "yours"]))) == ["mine", "yours"]
    waiting = [line.strip() for line in capsys.readouterr().out.splitlines() if "has not read" in line]
    assert waiting == [  # the first round refuses both, the second `mine`
        "Airflow has not read the DAGs of mine, yours yet",
        "Airflow has not read the DAGs of mine, yours yet",
        "Airflow has not read the DAGs of mine yet",
    ]


def test_a_missing_topic_is_an_error_with_the_creating_command() -> None:
    assert topic.missing_topics_message({"a": 3, "b": 3}, "127.0.0.1:1") == (
        "its topic a, b is not at 127.0.0.1:1; run "
        "`tidemark topic create a --partitions 3 && tidemark topic create b --partitions 3`"
    )


def test_an_airflow_that_was_stopped_is_one_line() -> None:
    api = AirflowApi("http://127.0.0.1:1", "admin", "any")
    with pytest.raises(TidemarkError, match=r"^Airflow does not answer at http://127\.0\.0\.1:1 .*`tidemark up`$"):
        api.runs("tidemark_flights_reports")
    assert not api.is_healthy()


class OfBusyAirflow(BaseHTTPRequestHandler):
    """Answers each first request with a database error, as Airflow does while its SQLite is locked."""

    asked: ClassVar[list[str]] = []

    def do_PATCH(self) -> None:
        self.asked.append(self.command)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(500 if self.asked.count(self.command) == 1 else 200)
        self.end_headers()

    do_POST = do_PATCH  # noqa: N815  # so names the base class its methods

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


def test_a_request_that_may_be_repeated_is_sent_again_after_an_error_of_the_server() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OfBusyAirflow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        api = AirflowApi(f"http://127.0.0.1:{server.server_port}", "admin", "any", "token")
        try:
            api.pause("tidemark_flights_streams")
            with pytest.raises(TidemarkError, match=r"^Airflow refused POST .*: 500"):
                api.trigger("tidemark_flights_streams", {})
        finally:
            server.shutdown()
            thread.join()
    assert OfBusyAirflow.asked == ["PATCH", "PATCH", "POST"]


def test_a_state_folder_is_writable_or_one_line(tmp_path: Path) -> None:
    # A file in place of a folder refuses new files, as a read-only home does.
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgument) as refused:
        writable_home(tmp_path / "file" / "state")
    assert str(refused.value) == (
        f"the state folder {tmp_path}/file/state cannot be written, see {tmp_path}/file; name another one by --home "
        "or TIDEMARK_HOME"
    )
    assert writable_home(tmp_path / "new" / "state").path == tmp_path / "new" / "state"
    assert not (tmp_path / "new").exists()


NUMBERS = "partitions and offsets are whole numbers from 0 on, got"


@pytest.mark.parametrize(
    ("command", "option", "value", "message"),
    [
        (accept_loss, "--partition", "1.5", f"{NUMBERS} '1.5'; write, for example, 12"),
        (accept_loss, "--until", "-5", f"{NUMBERS} '-5'"),
        (accept_loss, "--until", "9223372036854775808", f"{NUMBERS} '9223372036854775808'"),
        (reset_time, "--partition", "all", f"{NUMBERS} 'all'"),
        (reset_time, "--to", "noon", "an instant must be in ISO 8601, got 'noon'; write"),
    ],
)
def test_a_repair_names_the_argument_with_a_wrong_form(
    capsys: pytest.CaptureFixture[str], command: ModuleType, option: str, value: str, message: str
) -> None:
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    usual = {"--source": "s", "--partition": "0", "--by": "Ann", "--reason": "r"}
    usual |= {"--until": "3"} if command is accept_loss else {"--to": "2026-01-01T12:00Z"}
    given = [text for pair in (usual | {option: value}).items() for text in pair]
    with pytest.raises(SystemExit):
        parser.parse_args(["mine", "reading", *given])
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_records_that_were_skipped_are_sent_again_only_with_their_content() -> None:
    rows = pl.DataFrame(
        {
            "reason": [
                "kills_drivers",
                "fails_drivers",
                "fails_drivers",
                "accepted_loss",
                "accepted_loss",
                "null_value",
            ],
            "key": [None, None, b"k", None, None, None],
            "value": [None, b"v", None, None, b"v", None],
            "offset": range(6),
        },
        schema_overrides={"key": pl.Binary, "value": pl.Binary},
    ).with_columns(topic=pl.lit("t"), partition=0, source=pl.lit("s"))
    chosen = _chosen(rows, argparse.Namespace(source=None, reason=None, first=None, until=None))
    assert chosen["offset"].to_list() == [1, 2, 4, 5]


def test_a_present_record_is_named_alone(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    for more in ("--until=3", "--partition=0", "--topic-id=x"):
        told = tidemark(
            tmp_path, "--warehouse", str(tmp_path), "accept-loss", "t", "s", "--record=e/0/1", more, "--dry-run"
        )
        option = more.partition("=")[0]
        assert (told.returncode, f"{option}: does not go with --record" in told.stderr) == (1, True), told.stderr


def test_a_command_line_that_is_printed_finds_the_home_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEMARK_HOME", raising=False)
    assert program(Home(Project.here().state)) == "tidemark"
    other = Home(tmp_path / "my demo")
    assert program(other) == f"tidemark --home '{tmp_path}/my demo'"
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path / "my demo"))
    assert program(other) == "tidemark"
