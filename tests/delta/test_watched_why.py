"""`tidemark why SET.TABLE` names the first late table upstream, and what its writer does.

The logs are written by hand, as Spark writes them. Airflow is an HTTP server that filters its task instances as
Airflow's REST API does. Minutes count from ten; the present is eleven.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from support.command_line import CommandOutput, tidemark
from support.typed_commands import commands, options_of
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import VARIABLE, Project
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.slas.sla_spec import known_sets, load_usable
from tidemark.recorded_jobs.queries import RecordedQuery, write_query
from tidemark.sla.watched_evidence import Surroundings
from tidemark.sla.watched_why import explain_table
from tidemark.why.evidence.findings import WhyFinding

MINUTE = 60_000
TEN = datetime(2026, 3, 1, 10, tzinfo=UTC)
TEN_MS = 1_772_359_200_000
NOW_MS = TEN_MS + 60 * MINUTE
STOPPED = (0, 5, 10, 15, 20)
"""Commits of a table that should have got the next one at 10:25."""
GOES_ON = tuple(range(2, 60, 5))
LOAD = {"dag_id": "load.v2", "task_id": "get.raw", "run_id": "r1"}
FIELDS = {"type": "struct", "fields": [{"name": "at", "type": "timestamp", "nullable": True, "metadata": {}}]}


def at(minute: int) -> str:
    return iso(TEN_MS + minute * MINUTE)


def table(path: Path, minutes: tuple[int, ...], *, newest: int | None = None, query: str = "", **info: object) -> Path:
    """Writes a table with an append of five rows at each of *minutes*, the newest of that minute or of *newest*."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    metadata = {"id": path.name, "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
    metadata |= {"schemaString": json.dumps(FIELDS), "configuration": {}}
    start = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    for version, minute in enumerate(minutes):
        time = (TEN + timedelta(minutes=minute if newest is None else newest)).isoformat()
        stats = {"numRecords": 5, "minValues": {"at": time}, "maxValues": {"at": time}, "nullCount": {"at": 0}}
        content = {"path": f"{version}", "partitionValues": {}, "size": 700, "modificationTime": TEN_MS}
        about = {"timestamp": TEN_MS + minute * MINUTE, "operation": "WRITE", "engineInfo": "Apache-Spark/4.1.3"}
        actions = [{"commitInfo": about | info}, *(start if version == 0 else [])]
        actions += [{"txn": {"appId": query, "version": version}}] if query else []
        actions += [{"add": content | {"dataChange": True, "stats": json.dumps(stats)}}]
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    return path


def noted(run: Mapping[str, str] = LOAD) -> dict[str, str]:
    return {"userMetadata": json.dumps(run)}


def instance(run: str, state: str | None, start: int | None, end: int | None, **task: str) -> dict[str, Any]:
    """A task instance as Airflow 3.3 answers it, by default of LOAD."""
    dates = {"start_date": None if start is None else at(start), "end_date": None if end is None else at(end)}
    return {**LOAD, "dag_run_id": run, "state": state, **dates, "map_index": -1, **task}


@dataclass
class Airflow:
    """A server with the routes of Airflow's API that are asked, for a client with the token `secret`."""

    instances: list[dict[str, Any]] = field(default_factory=list)
    """The newest run is the first."""
    paused: bool = False
    inlets: dict[str, tuple[str, str]] = field(default_factory=dict)
    triggered_by: dict[str, str] = field(default_factory=dict)
    page: str = ""
    """What it answers as another server."""
    url: str = ""

    @property
    def api(self) -> AirflowApi:
        return AirflowApi(self.url, token="secret")

    def answer(self, path: str, wanted: dict[str, str]) -> tuple[int, Any]:
        match path.removeprefix("/api/v2/").split("/"):
            case ["dags", dag] if any(each["dag_id"] == dag for each in self.instances):
                return 200, {"is_paused": self.paused}
            case ["dags", "~", "dagRuns", "~", "taskInstances"]:
                # A task that has not ended has no end date, and one that has not started no start date.
                then = [
                    each
                    for each in self.instances
                    if each["start_date"] is not None
                    and each["start_date"] <= wanted["start_date_lte"].replace("+00:00", "Z")
                    and (each["end_date"] is None or each["end_date"] >= wanted["end_date_gte"].replace("+00:00", "Z"))
                ]
                return 200, {"task_instances": then[: int(wanted["limit"])]}
            case ["dags", dag, "dagRuns", run, "taskInstances"]:
                of_dag = [each for each in self.instances if each["dag_id"] == dag]
                of_run = [each for each in of_dag if run in {"~", each["dag_run_id"]}]
                if not of_run:
                    return 404, {"detail": "not found"}
                return 200, {"task_instances": [each for each in of_run if each["task_id"] == wanted["task_id"]]}
            case ["dags", _, "dagRuns", run, "upstreamAssetEvents"]:
                return 200, {"asset_events": [{"uri": uri} for uri, of in self.triggered_by.items() if of == run]}
            case ["assets"]:
                tasks = {uri: dict(zip(("dag_id", "task_id"), task, strict=True)) for uri, task in self.inlets.items()}
                return 200, {"assets": [{"uri": uri, "consuming_tasks": [task]} for uri, task in tasks.items()]}
        return 404, {"detail": "not found"}


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    serves = Airflow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            wanted = {key: values[0] for key, values in parse_qs(url.query).items()}
            is_known = self.headers["Authorization"] == "Bearer secret"
            status, content = serves.answer(unquote(url.path), wanted) if is_known else (401, {"detail": "who?"})
            body = (serves.page or json.dumps(content)).encode()
            status = 200 if serves.page else status
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        serves.url = f"http://127.0.0.1:{server.server_port}"
        yield serves
        server.shutdown()
        thread.join()


@dataclass
class Lake:
    folder: Path
    project: Project

    def promise(self, slas: str = "") -> None:
        sets = "\n".join(
            f'[watch.{name}]\ntables = ["{self.folder / name}"]\nowner = "ann"' for name in ("bronze", "silver")
        )
        self.project.slas.write_text(f"{sets}\n{slas}")

    def why(self, subject: str, airflow: Airflow | None = None) -> list[WhyFinding]:
        sets = known_sets(self.project.slas)
        layout, specs = Layout(self.folder / "warehouse"), load_usable(self.project.slas, sets).specs
        api = None if airflow is None else airflow.api
        known = Surroundings(watch=sets, specs=specs, layout=layout, airflow=api, kept=None, at_ms=NOW_MS)
        found = explain_table(subject, known)
        for words in (words for finding in found for words in commands(finding.remedy)):
            if words[0] == "tidemark":
                options_of(words[1:])
        return found

    def record(self, query_id: str, name: str, *sources: str) -> None:
        """Records a query of the job `shop` that reads *sources*."""
        places = {f"{name}:{n}": place for n, place in enumerate(sources)}
        query = RecordedQuery(name=name, query_id=query_id, sources=places, sink="", job="job")
        write_query(Layout(self.folder / "warehouse"), "shop", query)


@pytest.fixture
def lake(tmp_path: Path, own_project: Project) -> Lake:
    made = Lake(tmp_path / "lake", own_project)
    made.promise()
    return made


def test_the_late_table_furthest_up_is_the_cause_and_its_writer_is_explained(lake: Lake, airflow: Airflow) -> None:
    raw = table(lake.folder / "bronze" / "raw", STOPPED, **noted())
    fresh = table(lake.folder / "bronze" / "fresh", GOES_ON)
    orders = table(lake.folder / "silver" / "orders", STOPPED, query="q1")
    table(lake.folder / "silver" / "by_day", GOES_ON, newest=20, **noted({**LOAD, "task_id": "by_day", "run_id": "d"}))
    lake.record("q1", "clean", f"delta:{fresh}", f"delta:{raw}", "topic:codes")
    lake.promise('[watch.day]\nsubject = "silver.by_day"\nerror_after = "30 min"\n')
    airflow.inlets = {f"file://{orders}": ("load.v2", "by_day"), "file:///other": ("load.v2", "other")}
    airflow.triggered_by = {"postgres://db/codes": "d", "postgres://db/names": "r1"}
    airflow.instances = [
        instance("r2", "failed", 24, 26),
        instance("r1", "success", 19, 21),
        instance("d", "success", 56, 58, task_id="by_day"),
    ]

    upstream, failed, *evidence = lake.why("silver.by_day", airflow)
    assert (upstream.cause, upstream.operator, upstream.input) == ("upstream_late", "silver.by_day", "bronze.raw")
    assert upstream.since_ms == TEN_MS + 25 * MINUTE
    way = "silver.by_day ← silver.orders ← bronze.raw"
    assert upstream.seen == f"it got no commit that changed data for 40 min, usually every 5 min ({way})"
    assert (failed.cause, failed.operator) == ("writer_failed", "bronze.raw")
    assert failed.seen == f"load.v2.get.raw ended as failed at {at(26)} in its newest run, r2"
    assert commands(failed.remedy) == [
        ["airflow", "tasks", "clear", "load.v2", "--task-regex", "^get.raw$", "--only-failed"]
    ]
    told = [(finding.operator, finding.cause) for finding in evidence]
    assert told == [
        (name, cause)
        for name in ("silver.by_day", "silver.orders", "bronze.raw")
        for cause in ("last_commit", "airflow_run", "tables_read")
    ]
    seen = {key: finding.seen for key, finding in zip(told, evidence, strict=True)}
    assert seen["silver.by_day", "last_commit"] == (
        "WRITE of 5 rows 3 min ago by the clock of its writer, usually every 5 min; its writer is "
        "Airflow load.v2.by_day, run d, by Apache-Spark/4.1.3"
    )
    assert seen["silver.by_day", "tables_read"] == (
        f"postgres://db/codes (its asset triggered the run d); file://{orders} (an inlet of load.v2.by_day)"
    )
    by = "recorded of the query shop/clean"
    assert seen["silver.orders", "tables_read"] == f"{fresh} ({by}); {raw} ({by}); topic codes ({by})"
    # What runs alone when a query commits may have nothing to do with it, so its assets are not followed.
    assert seen["silver.orders", "airflow_run"].startswith("load.v2.get.raw, run r1 (no other task ran at the commit")
    assert seen["bronze.raw", "tables_read"] == "postgres://db/names (its asset triggered the run r1)"
    assert seen["bronze.raw", "airflow_run"] == (
        "load.v2.get.raw, run r1 (`userMetadata` of the commit names it), "
        f"ended as success at {at(21)}; the newest run, r2, ended as failed at {at(26)}"
    )


def test_a_table_that_keeps_its_sla_holds_nothing_up(lake: Lake, airflow: Airflow) -> None:
    raw = table(lake.folder / "bronze" / "raw", STOPPED)
    table(lake.folder / "silver" / "orders", STOPPED, query="q1")
    lake.record("q1", "clean", f"delta:{raw}")
    lake.promise('[watch.kept]\nsubject = "bronze.raw"\nerror_after = "2 h"\n')
    airflow.instances = [instance("r2", "failed", 19, 26)]
    first, *_ = lake.why("silver.orders", airflow)
    assert (first.cause, first.operator) == ("writer_unknown", "silver.orders")
    assert commands(first.remedy) == [["tidemark", "why", "shop", "clean"]]
    (first, *_) = lake.why("bronze.raw")
    assert first.cause == "on_time"
    assert "staleness of bronze.raw is 40 min; error from 2 h on" in first.seen


@pytest.mark.parametrize(
    ("newest", "paused", "cause", "command"),
    [
        (instance("r2", "upstream_failed", None, 26), False, "writer_failed", "airflow tasks clear load.v2"),
        (instance("r2", "running", 24, None), False, "writer_runs", "airflow tasks states-for-dag-run load.v2 r2"),
        (instance("r2", "success", 24, 26), False, "nothing_newer", ""),
        (instance("r2", "skipped", 24, 26), False, "writer_absent", "airflow dags trigger load.v2"),
        (None, False, "writer_absent", "airflow dags trigger load.v2"),
        (None, True, "writer_absent", "airflow dags unpause load.v2"),
    ],
)
def test_the_newest_run_says_what_the_writer_does(
    lake: Lake, airflow: Airflow, newest: dict[str, Any] | None, *, paused: bool, cause: str, command: str
) -> None:
    table(lake.folder / "bronze" / "raw", STOPPED, **noted())
    airflow.instances = [*([newest] if newest else []), instance("r1", "success", 19, 21)]
    airflow.paused = paused
    first = lake.why("bronze.raw", airflow)[0]
    assert first.cause == cause
    assert first.seen.startswith("it got no commit that changed data for 40 min, usually every 5 min; load.v2.get.raw ")
    assert command in first.remedy


def test_a_mapped_task_is_as_its_worst_instance(lake: Lake, airflow: Airflow) -> None:
    table(lake.folder / "bronze" / "raw", STOPPED, **noted())
    states = ("success", "failed", "running")
    airflow.instances = [instance("r2", state, 24, 26, map_index=str(n)) for n, state in enumerate(states)]
    airflow.instances.append(instance("r1", "success", 19, 21))
    assert lake.why("bronze.raw", airflow)[0].cause == "writer_failed"


def test_a_writer_that_commits_as_usual_and_brings_nothing_newer_is_told(lake: Lake, airflow: Airflow) -> None:
    table(lake.folder / "bronze" / "raw", GOES_ON, newest=20, **noted())
    airflow.instances = [instance("r1", "success", 56, 58)]
    lake.promise('[watch.kept]\nsubject = "bronze.raw"\nerror_after = "30 min"\n')
    first = lake.why("bronze.raw", airflow)[0]
    assert first.cause == "nothing_newer"
    assert first.seen.endswith(f"; its newest event time is {at(20)}")


@pytest.mark.parametrize(
    ("instances", "seen"),
    [
        (
            [instance("r2", "success", 24, 26), instance("r1", "success", 19, 21)],
            f"load.v2.get.raw, run r1 (no other task ran at the commit, {at(20)}), ended as success at {at(21)}; "
            f"the newest run, r2, ended as success at {at(26)}",
        ),
        (
            [instance("r1", "running", 19, None)],
            f"load.v2.get.raw, run r1 (no other task ran at the commit, {at(20)}), is running since {at(19)}",
        ),
        (
            [instance("r1", "success", 19, 21), instance("o", "running", 3, None, task_id="other")],
            f"unknown: the commit names none, and several tasks of Airflow ran at {at(20)}",
        ),
        (
            [instance("r1", "success", 21, 22), instance("r2", None, None, None)],
            f"unknown: the commit names none, and no task of Airflow ran at {at(20)}",
        ),
    ],
)
def test_without_a_note_the_run_is_that_of_the_only_task_then(
    lake: Lake, airflow: Airflow, instances: list[dict[str, Any]], seen: str
) -> None:
    table(lake.folder / "bronze" / "raw", STOPPED)
    airflow.instances = instances
    first, *_, run, _ = lake.why("bronze.raw", airflow)
    assert run.seen == seen
    assert ("load.v2.get.raw, which ran alone at the last commit, " in first.seen) == ("unknown" not in seen)


def test_what_nobody_can_be_asked_is_unknown_and_the_remedy_says_how_to_learn_it(lake: Lake, airflow: Airflow) -> None:
    table(lake.folder / "bronze" / "raw", STOPPED, **noted())
    first, _, run, read = lake.why("bronze.raw")
    assert first.cause == "writer_unknown"
    assert first.seen.endswith(
        "what its writer does is unknown: `userMetadata` of the commit names load.v2.get.raw, run r1; "
        "no Airflow is known that could be asked"
    )
    assert "TIDEMARK_AIRFLOW_URL" in run.remedy
    assert read.seen == "unknown: commits do not say it"
    # Airflow has forgotten the run.
    assert "Airflow does not know that run" in lake.why("bronze.raw", airflow)[0].seen
    for airflow.page in ("<html>", "[]"):
        assert f"what answers at {airflow.url} is no Airflow 3" in lake.why("bronze.raw", airflow)[0].seen
    airflow.url = "http://127.0.0.1:9"
    assert "Airflow does not answer at http://127.0.0.1:9" in lake.why("bronze.raw", airflow)[0].seen


def test_a_table_is_on_time_or_not_judged_or_has_no_log(lake: Lake) -> None:
    table(lake.folder / "bronze" / "raw", (45, 50, 55, 58))
    table(lake.folder / "bronze" / "young", (45, 50))
    assert [lake.why(f"bronze.{name}")[0].cause for name in ("raw", "young", "gone")] == [
        "on_time",
        "not_judged",
        "no_log",
    ]


def test_an_sla_that_is_kept_says_more_than_the_rhythm_though_another_is_not_known(lake: Lake) -> None:
    """The commits of the last 40 minutes are too few for a promise about a day, whose table began later."""
    table(lake.folder / "bronze" / "raw", STOPPED)
    of_raw = 'subject = "bronze.raw"\n'
    lake.promise(
        f'[watch.fresh]\n{of_raw}error_after = "2 h"\n[watch.enough]\n{of_raw}measure = "volume"\nerror_below = 99\n'
    )
    (first, *_) = lake.why("bronze.raw")
    assert first.cause == "on_time"
    assert first.seen == (
        "it keeps fresh (staleness of bronze.raw is 40 min; error from 2 h on); the verdict on enough is not known"
    )


def test_a_stamp_ahead_of_the_clock_is_no_negative_silence(lake: Lake) -> None:
    table(lake.folder / "bronze" / "raw", (45, 50, 55, 61))
    (first, *_) = lake.why("bronze.raw")
    assert (first.cause, first.seen.partition(";")[0]) == ("on_time", "the clock of its last commit is 1 min ahead")


def why(lake: Lake, *words: str, **variables: str) -> CommandOutput:
    return tidemark(lake.project.folder, "why", *words, **{VARIABLE: str(lake.project.folder), **variables})


def test_the_command_asks_the_airflow_of_the_environment(lake: Lake, airflow: Airflow) -> None:
    raw = table(lake.folder / "bronze" / "raw", STOPPED, **noted())
    airflow.instances = [instance("r2", "failed", 24, 26), instance("r1", "success", 19, 21)]
    asks = {"TIDEMARK_AIRFLOW_URL": f"{airflow.url}/", "TIDEMARK_AIRFLOW_TOKEN": "secret"}
    shown = why(lake, "bronze.raw", **asks)
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"writer_failed: bronze.raw since {at(25)}: it got no commit")
    assert f"`tidemark watch {raw}` shows the commits before" in shown.stdout
    first, *_ = json.loads(why(lake, "bronze.raw", "--format", "json", **asks).stdout)
    assert (first["cause"], first["operator"], first["since"]) == ("writer_failed", "bronze.raw", at(25))
    assert "no Airflow is known that could be asked" in why(lake, "bronze.raw").stdout
    refused = why(lake, "bronze.raw", **asks | {"TIDEMARK_AIRFLOW_TOKEN": "guessed"})
    assert "Airflow refused GET" in refused.stdout
    assert "401" in refused.stdout
    past = why(lake, "bronze.raw", "--at", at(0))
    assert (past.returncode, "leave out --at and OPERATOR" in past.stderr) == (1, True)
