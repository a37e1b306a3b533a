"""Planted secrets stay where they belong while all of Tidemark works.

They are found nowhere else while streams, batch jobs and channels work.

All are of letters, digits, `-` and `_`, which stay the same in URLs, JSON and HTML; base64 is looked for as well.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import polars as pl
import pytest

from support.mail_and_webhook import Inbox, Receiver
from support.supervised_streams import NUMBERS, SPARK, Stage, Supervised, staged
from tidemark.control.process import free_port, wait_until
from tidemark.local import airflow
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi, TaskInstance

# `tests/objectstore/test_driver.py` has a short case: one secret, in arguments, logs and files.
LONG = pytest.mark.long
DAG = "canaries"
PROGRAMS = {"stream.py", "rollup.py", "critical_path.py", "maintain.py", "check_sla.py"}
MADE = {"secrets.json", "passwords.json"}
"""Files of the embedded Airflow that only its owner may read."""
LOOK_EVERY_S = 0.1
OBSERVED = """
[spark.conf]
"spark.ui.enabled" = "true"
"spark.ui.port" = "{port}"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "{events}"
"""


class Watch:
    """Watches all processes of this machine in a thread."""

    def __init__(self, warehouse: Path) -> None:
        self.commands: set[bytes] = set()
        self.environments: dict[str, set[bytes]] = {}
        """Environments of processes that receive *warehouse*, by Tidemark program."""
        self._warehouse = str(warehouse).encode()
        self._over = threading.Event()

    @contextmanager
    def on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    self._look_at(entry)

    def _look_at(self, entry: Path) -> None:
        command, environment = ((entry / name).read_bytes() for name in ("cmdline", "environ"))
        self.commands.add(command)
        for program in PROGRAMS:
            if self._warehouse in command and f"/jobs/{program}\0".encode() in command:
                self.environments.setdefault(program, set()).add(environment)


@dataclass(frozen=True)
class Asked:
    """What Airflow answers about the task `rollup` of the run *run_id*."""

    run_id: str
    of_run: TaskInstance | None
    newest: TaskInstance | None
    of_another: TaskInstance | None
    ran_then: list[TaskInstance]
    ran_in_1970: list[TaskInstance]
    inlets: list[str]
    triggered_by: list[str]


@dataclass(frozen=True)
class Ran:
    """Traces of a run: files, processes, pages, mails, webhooks, task states.

    They are files below *home*, what *watch* saw, Spark's pages, and more.

    Of the canaries, by their places, those *of_airflow* are for it alone; jobs have those *of_store*.
    """

    of_airflow: Mapping[str, str]
    of_store: Mapping[str, str]
    home: Path
    watch: Watch
    pages: list[str]
    mails: list[str]
    texts: list[str]
    states: Mapping[str, str | None]
    asked: Asked

    def found_in(self, texts: Iterable[str | bytes]) -> set[str]:
        """The places of the canaries that are in *texts*."""
        return found({**self.of_airflow, **self.of_store}, texts)


def found(canaries: Mapping[str, str], texts: Iterable[str | bytes]) -> set[str]:
    """Returns the places of *canaries* that *texts* contain.

    A canary may be within a longer text in base64.
    """
    held = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    return {place for place, canary in canaries.items() if any(form in held for form in forms(canary))}


def forms(canary: str) -> Iterator[bytes]:
    """Yields *canary* as it is, and in base64 at any place."""
    yield canary.encode()
    for before in range(3):
        encoded = base64.b64encode(b"-" * before + canary.encode())
        yield encoded[4 if before else 0 : (before + len(canary)) // 3 * 4]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Runs a stream, every batch job, and three channels.

    The channels receive the results of the check.
    """
    home = tmp_path_factory.mktemp("canaries")
    of_airflow: dict[str, str] = defaultdict(lambda: secrets.token_hex(16))
    of_store = {name: secrets.token_hex(16) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    with pytest.MonkeyPatch.context() as patch, receivers() as (inbox, webhook):
        for name, value in of_store.items():
            patch.setenv(name, value)
        planted, made = in_environment(of_airflow, inbox), airflow.environment
        patch.setattr(airflow, "environment", lambda *args, **kwargs: {**made(*args, **kwargs), **planted})
        with staged(home / "stage") as stage:
            of_airflow |= generated(stage)
            store(of_airflow, stage.api, webhook)
            stream, watch = Supervised(stage, home / "warehouse", SPARK), Watch(home / "warehouse")
            with watch.on():
                pages, states, asked = play(stream, home)
            mails = [f"{mail}\n{mail.get_body().get_content()}" for mail in inbox.mails]
            yield Ran(of_airflow, of_store, home, watch, pages, mails, webhook.taken, states, asked)


@contextmanager
def receivers() -> Iterator[tuple[Inbox, Receiver]]:
    """A mail server and a webhook that are up."""
    inbox, webhook = Inbox(), Receiver([])
    thread = threading.Thread(target=webhook.serve_forever)
    inbox.up()
    thread.start()
    try:
        yield inbox, webhook
    finally:
        inbox.down()
        webhook.shutdown()
        thread.join()
        webhook.server_close()


def in_environment(canary: Mapping[str, str], inbox: Inbox) -> dict[str, str]:
    """Returns variables for Airflow with one or two of *canary* each.

    No server listens where the connection slack_gone leads.
    """
    extra = {"deploy-mode": "client", "token": canary["extra of spark"]}
    spark = {"conn_type": "spark", "host": "local[2]", "password": canary["password of spark"], "extra": extra}
    gone = f"http://127.0.0.1:{free_port()}/{canary['password of slack']}"
    kafka = {"conn_type": "kafka", "extra": {"sasl.password": canary["extra of kafka"]}}
    return {
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "AIRFLOW_CONN_SMTP_DEFAULT": inbox.connection(login="tidemark", password=canary["password of smtp"]),
        "AIRFLOW_CONN_SLACK_GONE": json.dumps({"conn_type": "slackwebhook", "password": gone}),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
        "AIRFLOW_VAR_CANARY": canary["variable"],
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+postgresql://airflow:{canary['database']}@db/airflow",
        "AIRFLOW__SMTP__SMTP_PASSWORD": canary["setting"],
        "_AIRFLOW_WWW_USER_PASSWORD": canary["password of the image's user"],
    }


def generated(stage: Stage) -> dict[str, str]:
    """Returns keys and password that the embedded Airflow generated."""
    known = json.loads((stage.home / "airflow" / "secrets.json").read_text())
    return {name: known[name].rstrip("=") for name in ("password", "fernet_key", "jwt_secret", "secret_key")}


def store(canary: Mapping[str, str], api: AirflowApi, webhook: Receiver) -> None:
    """Put a connection and a variable with *canary* into Airflow's database."""
    stored = {
        "connection_id": "slack_stored", "conn_type": "slackwebhook",
        "password": f"{webhook.url}/{canary['stored password']}",
        "extra": json.dumps({"token": canary["stored extra"]}),
    }  # fmt: skip
    api._call("POST", "/api/v2/connections", stored)
    api._call("POST", "/api/v2/variables", {"key": "stored", "value": canary["stored variable"]})


def play(stream: Supervised, home: Path) -> tuple[list[str], Mapping[str, str | None], Asked]:
    """Runs *stream*, then jobs and channels.

    Returns the pages of its driver, how the tasks ended, and what is known of one.
    """
    api, port, events = stream.stage.api, free_port(), home / "events"
    events.mkdir()
    stream.stage.topology(SPARK).write_text(NUMBERS + OBSERVED.format(port=port, events=events))
    wait_until(lambda: api.has_dag(DAG), "the DAG", 60)
    api.unpause(DAG)
    stream.put(0, 1)
    run_id = stream.trigger()
    try:
        stream.running()
        wait_until(lambda: (beat := stream.driver.heartbeat()) is not None and beat.batches >= 1, "a batch", 60)
        checked = api.trigger(DAG, {"warehouse": str(stream.warehouse)})
        pages = of_spark(f"http://127.0.0.1:{port}")
        wait_until(lambda: api.run_state(DAG, checked) in ENDED, "the end of the jobs", 150)
        stream.drain(run_id)
    finally:
        stream.end()
    return pages, api.task_states(DAG, checked), asked_of(api, checked)


def asked_of(api: AirflowApi, run_id: str) -> Asked:
    of_run = api.run_of(DAG, "rollup", run_id)
    started_ms = 0 if of_run is None else of_run.started_ms or 0
    return Asked(
        run_id,
        of_run,
        newest=api.newest_run_of(DAG, "rollup"),
        of_another=api.run_of(DAG, "rollup", "never"),
        ran_then=api.some_that_ran_at(started_ms + 1),
        ran_in_1970=api.some_that_ran_at(1),
        inlets=api.inlets_of(DAG, "rollup"),
        triggered_by=api.assets_that_triggered(DAG, run_id),
    )


def of_spark(url: str) -> list[str]:
    """Returns the configuration that the driver's pages at *url* show.

    For people and for programs.
    """
    (application,) = json.loads(page(f"{url}/api/v1/applications"))
    of_application = f"{url}/api/v1/applications/{application['id']}"
    return [page(place) for place in (f"{url}/environment/", f"{of_application}/environment", f"{url}/executors/")]


def page(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        text: str = response.read().decode()
    return text


def contents(file: Path) -> Iterator[str | bytes]:
    """The bytes of *file*, and its values where they are compressed."""
    yield file.read_bytes()
    if file.suffix == ".parquet":
        yield repr(pl.read_parquet(file).rows())
    elif file.suffix == ".zip":
        with ZipFile(file) as journal:
            yield from map(journal.read, journal.namelist())


def test_whatever_a_canary_stands_in_it_is_found() -> None:
    canary = {"here": secrets.token_hex(16)}
    for before in range(4):
        encoded = base64.b64encode(b"x" * before + canary["here"].encode() + b"y" * before)
        assert found(canary, [b"a", b"b" + encoded]) == {"here"}
    assert found(canary, [f"a%20{canary['here']}%3D"]) == {"here"}
    assert found(canary, [canary["here"][:-1]]) == set()


@LONG
def test_no_file_has_a_secret(ran: Ran) -> None:
    files = [file for file in ran.home.rglob("*") if file.is_file() and not file.is_symlink() and file.name not in MADE]
    assert {str(file.relative_to(ran.home)): leaked for file in files if (leaked := ran.found_in(contents(file)))} == {}
    kinds = (
        "airflow.db",
        "driver.log",
        "heartbeat.json",
        "attempt=1.log",
        "*.parquet",
        "0000*.json",
        "events_1_*",
        "*.html",
    )
    assert [kind for kind in kinds if not any(file.match(kind) for file in files)] == []


@LONG
def test_no_command_line_has_a_secret(ran: Ran) -> None:
    assert set(ran.watch.environments) == PROGRAMS
    assert ran.found_in(ran.watch.commands) == set()


@LONG
def test_drivers_and_jobs_have_credentials_of_the_store_alone(ran: Ran) -> None:
    for program, environments in ran.watch.environments.items():
        assert (program, found(ran.of_airflow, environments)) == (program, set())
        assert (program, found(ran.of_store, environments)) == (program, set(ran.of_store))
        names = {name.partition(b"=")[0] for environment in environments for name in environment.split(b"\0")}
        assert (program, [name for name in names if b"AIRFLOW" in name]) == (program, [])


@LONG
def test_no_page_of_spark_has_a_secret(ran: Ran) -> None:
    assert all("spark.eventLog.dir" in page for page in ran.pages[:2])
    assert ran.found_in(ran.pages) == set()


@LONG
def test_no_message_has_a_secret_even_if_it_cannot_be_sent(ran: Ran) -> None:
    ended = {state: {task for task in ran.states if ran.states[task] == state} for state in ("success", "failed")}
    assert ended["failed"] == {"tell_gone"}
    assert {"tell_desk", "tell_room", "check_sla"} <= ended["success"]
    for messages in (ran.mails, ran.texts):
        assert any("board_is_fresh" in text and "broken (" in text for text in messages)
        assert ran.found_in(messages) == set()


def test_airflow_tells_who_ran_at_an_instant_and_what_a_task_reads(ran: Ran) -> None:
    """`tidemark why` asks so about the last commit of a watched table."""
    asked, of_run = ran.asked, ran.asked.of_run
    assert of_run is not None
    assert (of_run.dag_id, of_run.task_id, of_run.run_id, of_run.state) == (DAG, "rollup", asked.run_id, SUCCESS)
    assert of_run.started_ms is not None
    assert of_run.ended_ms is not None
    assert of_run.started_ms < of_run.ended_ms
    assert (asked.newest, asked.of_another) == (of_run, None)
    # Others ran then, too: the task of the stream waited for its driver.
    assert len(asked.ran_then) == 2
    for run in asked.ran_then:
        assert (run.started_ms or 0) <= of_run.started_ms + 1 <= (run.ended_ms or of_run.ended_ms)
    assert asked.ran_in_1970 == []
    assert (asked.inlets, asked.triggered_by) == (["file:///lake/numbers"], [])
