"""People decide about repairs in Airflow, without a slot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from support.repairable import LOSS, REMOVAL, REOPENING, REQUEUING, RESET, RESHARDING, Repairable
from support.supervised_streams import HEARD, RIGHT_TO_KILL
from tidemark.clock import wall_clock_ms
from tidemark.control import process
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.local import airflow, broker
from tidemark.local.airflow_api import AirflowApi
from tidemark.model.project.files import CHECKOUT, Project
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan
from tidemark_airflow.operators.decisions import (
    AnswerTrigger,
    DecisionOperator,
    _body,
    _in_short,
    _note,
    _run,
    command_in,
    words_of,
)
from tidemark_airflow.operators.driver import NAME, Driver

QUESTIONS = "tidemark_play_decisions"
STREAMS = "play_streams"
WITHIN_S = 400.0
PARKED_S, LOOKED_EVERY_S = 600, 5
POLL_S, SCHEDULED_WITHIN_S = 1, 5
CLI = "import sys; from tidemark.cli.main import main; sys.exit(main())"
DAG_FILE = """
import os, sys
from pathlib import Path

TESTS = Path(os.environ["TIDEMARK_TESTS"])
sys.path.append(str(TESTS))
from airflow.sdk import DAG
from support.supervised_streams import FIRST_LOOK_S, RIGHT_TO_KILL
from tidemark_airflow.operators.stream import StreamOperator, Supervision


class StandIn(StreamOperator):
    def _command(self):
        return [str(TESTS / "airflow" / "bin" / "spark-submit"), *super()._command()[1:]]


with DAG("play_streams", schedule=None):
    StandIn(
        task_id="events",
        topology_file=Path(os.environ["TIDEMARK_PROJECT"]) / "topologies" / "play.toml",
        sub_topology="events",
        warehouse="{{ var.value.tidemark_warehouse }}",
        bootstrap="127.0.0.1:1",
        application=str(TESTS / "airflow" / "stand_in.py"),
        supervision=Supervision(poll_s=1, first_look_s=FIRST_LOOK_S, restarts=1, right_to_kill=RIGHT_TO_KILL),
        decisions="tidemark_play_decisions",
    )
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('tidemark accept-loss play events --source e --until 9 --by NAME --reason "a b"', "--source e --until 9"),
        ("accept-loss play events --reason=x --source=e --by=Ann", "--source=e"),
        ("accept-loss play events --record e/0/9 --by NAME --reason TEXT", "--record e/0/9"),
        ("requeue play --reason malformed_json --source e", "--reason malformed_json --source e"),
        ("doctor play events --apply remove-torn", "--apply remove-torn"),
        ("doctor play events --by= --apply=remove-torn", "--apply=remove-torn"),
        ("reshard play --shards 2", "--shards 2"),
    ],
)
def test_a_printed_remedy_is_a_command_without_its_author(command: str, words: str) -> None:
    assert " ".join(words_of(command, "play")).endswith(words)
    assert not {"tidemark", "NAME", "Ann", "--by"} & {*words_of(command, "play")}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "must be one of accept-loss, requeue, reset-time, doctor, reshard"),
        ("down play", "must be one of"),
        ("--home /tmp doctor play --apply remove-torn", "must be one of"),
        ("reshard other --shards 2", "must be about play"),
        ("reshard other.toml --shards 2", "must be about play"),
        ("requeue play --bootstrap evil:9092", "requeue has no option --bootstrap here"),
        ("requeue play --boot=evil:9092", "requeue has no option --boot here"),
        ("requeue play --secrets /etc/passwd", "requeue has no option --secrets here"),
        ("accept-loss play events --plan 0123456789ab", "accept-loss has no option --plan here"),
        ("doctor play events", "doctor changes nothing"),
        ("doctor 'play", "No closing quotation"),
    ],
)
def test_other_commands_and_options_are_refused(command: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        words_of(command, "play")


def test_the_command_of_a_lasting_error_is_found() -> None:
    lost = (
        "DataLost: topic 'events', partition 0: offsets 4 until 9 were lost unread; records are never skipped: "
        "restore them, or accept the loss and continue from offset 9: "
        "tidemark accept-loss play events --source events --partition 0 --until 9 --by NAME --reason TEXT"
    )
    assert command_in(lost, "play") == "accept-loss play events --source events --partition 0 --until 9"
    two = f"{lost}; {lost.replace('--partition 0', '--partition 1')}"
    assert command_in(two, "play") == command_in(lost, "play")
    torn = (
        "Unsound: checkpoint, journal and tables are inconsistent (tidemark doctor play events):\n"
        "checkpoint_torn: offsets/3 is incomplete; it is not used yet\n"
        "  remedy: remove it: tidemark doctor play events --apply remove-torn\nmore"
    )
    assert command_in(torn, "play") == "doctor play events --apply remove-torn"
    assert command_in(torn.replace(" --apply remove-torn", ""), "play") is None
    assert command_in(lost, "other") is None


def test_markup_in_what_is_shown_is_inert() -> None:
    body = _body("", ["doctor", "`play` **safe**"], "before\n```\n# forged\n````\nafter", until_ms=0)
    assert body.startswith("```\ntidemark doctor '`play` **safe**'\n```\n\n")
    assert "\n`````\nbefore\n```\n# forged\n````\nafter\n`````\n" in body
    assert "Without an answer until 1970-01-01T00:00:00.000Z it counts as rejected" in body


def test_channels_get_each_line_of_a_short_dry_run() -> None:
    effect = "2 of 3 records would be sent again\n  e, malformed_json: 2 of topic e, partition 0, offsets 4 to 9"
    one = "2 of 3 records would be sent again; e, malformed_json: 2 of topic e, partition 0, offsets 4 to 9"
    assert _in_short(effect) == one
    assert (_in_short("x" * 500), _in_short("x" * 501)) == ("x" * 500, "x" * 499 + "…")


@pytest.mark.parametrize("sent", [None, {}, {"note": 7}, {"other": "x"}])
def test_an_answer_without_a_usable_reason_has_none(sent: Any) -> None:
    assert _note({"params_input": sent}) == ""
    assert _note({"params_input": {"note": "  on it\n"}}) == "on it"


def test_a_drain_ends_the_wait_for_an_answer(tmp_path: Path) -> None:
    control = Control(tmp_path / "control" / "play" / "events")
    trigger = AnswerTrigger(home=str(control.home), dag_id="d", question="q", poll_s=0.01, first_look_s=0)
    _, kwargs = trigger.serialize()
    again = AnswerTrigger(**kwargs)
    assert again._answer() is None, "no Airflow answers here, and the look is repeated"
    control.request_drain(by="ann", now_ms=1)
    assert again._answer() == "drained"
    assert (
        AnswerTrigger(**{**kwargs, "until_ms": wall_clock_ms() - 1})._answer()
        == "missing (q of the DAG d has not ended)"
    )


def test_a_task_that_airflow_does_not_run_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "control" / "play" / "events"
    trigger = AnswerTrigger(home=str(home), dag_id="d", question="q", poll_s=0.01, first_look_s=0)
    # Its scheduler is late once; the question is parked then, and is not scheduled again after its answer.
    states = iter(["unscheduled"] * 23 + [None] + ["unscheduled"] * 24)
    monkeypatch.setattr("tidemark_airflow.operators.decisions.answer_to", lambda *_: next(states))
    assert [trigger._answer() for _ in range(48)] == [None] * 47 + ["unscheduled"]


def asking(stopped: Repairable) -> DecisionOperator:
    return DecisionOperator(
        task_id="decide", topology=stopped.play.topology, command=REMOVAL, warehouse=str(stopped.warehouse)
    )


def test_a_look_that_fails_for_a_moment_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Repairable(tmp_path / "project")
    monkeypatch.setenv("TIDEMARK_PROJECT", str(stopped.home))
    away = stopped.warehouse.rename(tmp_path / "away")
    # The storage is back after the first look.
    monkeypatch.setattr("time.sleep", lambda seconds: away.exists() and away.rename(stopped.warehouse))
    status, output = asking(stopped)._tidemark([*REMOVAL.split(), "--dry-run"], within_s=200)
    assert (status, f"it removes {stopped.torn}\nplan " in output, "no such folder" in output) == (0, True, False)


def test_a_command_has_a_time_limit() -> None:
    status, output = _run([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert (status, output) == (124, "it did not end within 0.5 s, and was killed; what it has changed stays")


@dataclass
class Plant:
    """A stopped stream, the Airflow that asks about it, and its broker."""

    stopped: Repairable
    home: Path
    api: AirflowApi
    broker: str

    def client(self, user: str) -> httpx.Client:
        passwords = json.loads((self.home / "passwords.json").read_text())
        login = httpx.post(
            f"{self.api.url}/auth/token", json={"username": user, "password": passwords[user]}, timeout=60
        )
        return httpx.Client(
            base_url=f"{self.api.url}/api/v2",
            headers={"Authorization": f"Bearer {login.json()['access_token']}"},
            timeout=60,
        )

    def trigger_stream(self) -> tuple[str, str]:
        """Starts the stream; returns its run and its parked question."""
        earlier = {*self.api.runs(QUESTIONS)}
        run_id = self.api.trigger(STREAMS, {})
        return run_id, self.next_question(earlier)

    def next_question(self, earlier: Collection[str]) -> str:
        """Returns the run in which the stream asks, once it is parked.

        It is none of *earlier*.
        """

        def asked() -> list[str]:
            return [run for run in self.api.runs(QUESTIONS) if run.startswith("events__") and run not in earlier]

        process.wait_until(lambda: bool(asked()), "the question of the stream", WITHIN_S)
        (question,) = asked()
        self.wait_for(question, "awaiting_input")
        return question

    def ask(self, command: str, **params: str) -> str:
        """Asks about *command*; returns the run once it is parked."""
        run_id = self.api.trigger(QUESTIONS, {"command": f"tidemark {command}", **params})
        self.wait_for(run_id, "awaiting_input")
        return run_id

    def wait_for(self, run_id: str, *states: str) -> None:
        process.wait_until(lambda: self.state(run_id) in states, f"{run_id}: {' or '.join(states)}", WITHIN_S)

    def state(self, run_id: str) -> str | None:
        return self.api.task_states(QUESTIONS, run_id).get("decide")

    def answer(self, user: str, run_id: str, option: str, **params: Any) -> int:
        """Answers by REST; returns the HTTP status."""
        url = f"/dags/{QUESTIONS}/dagRuns/{run_id}/taskInstances/decide/-1/hitlDetails"
        with self.client(user) as client:
            return client.patch(url, json={"chosen_options": [option], "params_input": params}).status_code

    def reject_until_heard(self, run_id: str, **params: Any) -> None:
        """Rejects a question again whenever it is parked, until it ended.

        Airflow may lose an answer that comes before its scheduler has seen that the task is parked, and asks again.
        """

        def has_ended() -> bool:
            if (state := self.state(run_id)) == "awaiting_input":
                assert self.answer("ann", run_id, "Reject", **params) in {200, 409}
            return state == "skipped"

        process.wait_until(has_ended, f"{run_id}: skipped", WITHIN_S)

    def detail(self, run_id: str) -> dict[str, Any]:
        with self.client("admin") as client:
            found = client.get(f"/dags/{QUESTIONS}/dagRuns/{run_id}/taskInstances/decide/-1/hitlDetails").json()
        return dict(found)

    def log(self, run_id: str) -> str:
        return "\n".join(self.api.log(QUESTIONS, run_id, "decide"))

    def decisions(self) -> list[dict[str, Any]]:
        path = Layout(self.stopped.warehouse).report_table("play", "decisions")
        return scan(path).sort("decided_at").collect().to_dicts()

    def drain(self, streams_run: str) -> None:
        """Drains the stream once its driver runs; its run succeeds."""
        process.wait_until(self.stopped.play.control.is_held, "the driver", WITHIN_S)
        self.stopped.play.control.request_drain(by="ann", now_ms=wall_clock_ms())
        self.wait_for_stream(streams_run, "success")

    def wait_for_stream(self, streams_run: str, state: str) -> None:
        process.wait_until(lambda: self.api.run_state(STREAMS, streams_run) == state, "the end of the stream", WITHIN_S)


def places(client: httpx.Client) -> tuple[Any, ...]:
    """Returns slots in use, and tasks with a process or a trigger."""
    pool = client.get("/pools/default_pool").json()
    slots = [pool[name] for name in ("occupied_slots", "running_slots", "queued_slots", "scheduled_slots")]
    tasks = client.get("/dags/~/dagRuns/~/taskInstances").json()["task_instances"]
    active = [task["task_id"] for task in tasks if task["state"] in {"scheduled", "queued", "running"}]
    triggered = [task["task_id"] for task in tasks if task["trigger"] is not None]
    parked = [task["task_id"] for task in tasks if task["state"] == "awaiting_input"]
    return (*slots, len(active), *triggered, *parked)


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    stopped = Repairable(tmp_path / "project")
    home, root = tmp_path / "airflow", tmp_path / "root"
    (root / "dags").mkdir(parents=True)
    (root / "dags" / "streams.py").write_text(DAG_FILE)
    shutil.copy(CHECKOUT / "dags" / "tidemark_decisions.py", root / "dags")
    (root / "plugins").symlink_to(CHECKOUT / "plugins")
    os.environ["TIDEMARK_TESTS"] = str(CHECKOUT / "tests")
    users = {"CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,ann:user,eve:viewer"}
    # How soon a deadline is noticed; by default after 15 s.
    soon = {"SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2"}
    control = stopped.play.control.home
    driver = Driver(control, RIGHT_TO_KILL, shared=control.parent / ".driver")
    (control / "behaviour").write_text(f"lose {LOSS}")
    try:
        address = broker.start(tmp_path / "broker").address
        broker.create_topics(address, {"events": 2})
        parts = airflow.start(
            home,
            root=root,
            project=Project(stopped.home),
            variables={"tidemark_warehouse": str(stopped.warehouse), "tidemark_bootstrap": address},
            settings={**HEARD, **users, **soon},
        )
        api = airflow.wait_until_healthy(home, parts)
        for dag in (QUESTIONS, STREAMS):
            process.wait_until(lambda dag=dag: api.has_dag(dag), "the DAGs", WITHIN_S)  # type: ignore[misc]
        api.unpause(STREAMS)
        yield Plant(stopped, home, api, address)
    finally:
        airflow.stop(home)
        broker.stop(tmp_path / "broker")
        process.stop(driver.process_home, NAME, grace_s=0)


@pytest.mark.long  # a real Airflow, and three decisions that are parked for ten minutes
def test_three_decisions_parked_for_ten_minutes_hold_no_slot(plant: Plant) -> None:
    control, api = plant.stopped.play.control, plant.api
    streams_run, loss = plant.trigger_stream()
    reset = plant.ask(RESET, why="a clock of 2014")
    removal = plant.ask(REMOVAL, answer_within=f"{PARKED_S + 30} s")

    seen = []
    until = time.monotonic() + PARKED_S
    with plant.client("admin") as client:
        while time.monotonic() < until:
            seen.append(places(client))
            time.sleep(LOOKED_EVERY_S)
    # No slot and no process; the one trigger is that of the stream that waits.
    assert {*seen} == {(0, 0, 0, 0, 0, "events", "decide", "decide", "decide")}
    assert len(seen) >= PARKED_S / (2 * LOOKED_EVERY_S)

    detail = plant.detail(loss)
    assert detail["subject"] == f"tidemark {LOSS}?"
    assert (detail["options"], detail["defaults"]) == (["Approve", "Reject"], ["Reject"])
    assert "partition 0 from offset 4 until 9 (5)" in detail["body"]
    assert "DataLost: offsets were lost unread" in detail["body"]
    told = plant.log(loss)
    assert "[critical] play: accept-loss of events: decision waits for an answer" in told
    assert f"Look here: {api.url}/dags/{QUESTIONS}/runs/{loss}/tasks/decide/required_actions" in told
    assert "[warning] play: reset-time of events: decision waits for an answer" in plant.log(reset)

    assert plant.answer("eve", loss, "Approve") == 403
    assert plant.answer("ann", loss, "Maybe") == 400
    assert plant.answer("ann", loss, "Approve", note="retention") == 200
    assert plant.answer("ann", loss, "Reject") == 409
    assert plant.answer("admin", reset, "Reject", note="not in the day", other="x") == 200
    plant.wait_for(loss, "success")
    plant.wait_for(reset, "skipped")
    plant.wait_for(removal, "skipped")
    (accepted,) = json.loads((control.home / "loss.json").read_text())["content"]
    assert (accepted["until_offset"], accepted["by"], accepted["reason"]) == (9, "ann", "retention")
    assert (control.time_resets(), plant.stopped.torn.exists()) == ([], True)
    rows = {row["decision"]: row for row in plant.decisions()}
    columns = ("outcome", "decided_by", "note", "subject", "asked_in")
    assert {name: tuple(row[column] for column in columns) for name, row in rows.items()} == {
        "accept-loss": ("applied", "ann", "retention", "events", f"{QUESTIONS} {loss} try 1"),
        "reset-time": ("rejected", "admin", "not in the day", "events", f"{QUESTIONS} {reset} try 1"),
        "doctor": ("timed_out", None, None, "events", f"{QUESTIONS} {removal} try 1"),
    }
    assert rows["accept-loss"]["result"].endswith("partition 0 from offset 4 on; start the stream")
    assert rows["doctor"]["effect"].endswith(f"it removes {plant.stopped.torn}")
    assert "decision has an answer\ntimed_out" in plant.log(removal)
    # The stream runs without the lost records, launched by its own task.
    plant.drain(streams_run)


@pytest.mark.long  # a real Airflow and broker, and twenty processes of `tidemark`
def test_only_what_was_shown_is_done(plant: Plant) -> None:
    control, api = plant.stopped.play.control, plant.api
    with plant.client("admin") as client:
        client.post("/variables", json={"key": "tidemark_deciders", "value": "ann"}).raise_for_status()
    commands = (RESET, REOPENING, RESHARDING, REQUEUING)
    reset, *others = asked = [plant.ask(command) for command in commands]
    assert plant.answer("admin", reset, "Approve") == 403
    by_hand = [sys.executable, "-c", CLI, "--warehouse", str(plant.stopped.warehouse)]
    author = ["--by", "Bob", "--reason", "at the shell"]
    subprocess.run([*by_hand, *RESET.split(), *author], cwd=plant.stopped.home, check=True)
    assert [plant.answer("ann", run, "Approve") for run in asked] == [200, 200, 200, 200]
    plant.wait_for(reset, "failed")
    for run in others:
        plant.wait_for(run, "success")
    assert [made.by for made in control.time_resets()] == ["Bob"]
    assert len(control.reopenings()) == 1
    assert {(row["decision"], row["outcome"], row["decided_by"]) for row in plant.decisions()} == {
        ("reset-time", "applied", "Bob"),
        ("reset-time", "changed", "ann"),
        ("requeue", "applied", "ann"),
        ("reshard", "applied", "ann"),
    }
    results = {row["result"] for row in plant.decisions() if row["decision"] == "requeue"}
    assert "1 of 1 records were sent again" in results
    consumer = Consumer({"bootstrap.servers": plant.broker, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("events", 1, 0)])
    (sent,) = consumer.consume(1, timeout=30)
    consumer.close()
    assert (sent.value(), sent.headers()) == (b"\xff", [("tidemark-requeued", b"1/2")])

    idle = api.trigger(QUESTIONS, {"command": REOPENING})
    again = api.trigger(QUESTIONS, {"command": REQUEUING})
    wrong = api.trigger(QUESTIONS, {"command": "requeue play --bootstrap 127.0.0.1:1"})
    for run in (idle, again):
        plant.wait_for(run, "skipped")
    plant.wait_for(wrong, "failed")
    assert "there is nothing to decide: counts: 0 of 1 late records" in plant.log(idle)
    assert "there is nothing to decide: 0 of 1 records" in plant.log(again)


@pytest.mark.long  # a real Airflow, and a stream that asks five times
def test_a_stream_notices_that_its_question_is_gone(plant: Plant) -> None:
    control, api = plant.stopped.play.control, plant.api
    streams_run, first = plant.trigger_stream()
    # The answer to another question about the same stream is not its own.
    other = plant.ask(RESET, stream="events")
    plant.reject_until_heard(other)
    time.sleep(3 * POLL_S)
    assert api.task_states(STREAMS, streams_run) == {"events": "deferred"}
    assert plant.state(first) == "awaiting_input"

    # Airflow deletes no run that is running, and its scheduler may die of one that is deleted while it looks at it.
    api.pause(QUESTIONS)
    time.sleep(SCHEDULED_WITHIN_S)
    with plant.client("admin") as client:
        url = f"/dags/{QUESTIONS}/dagRuns/{first}"
        client.patch(url, json={"state": "queued"}).raise_for_status()
        client.delete(url).raise_for_status()
    api.unpause(QUESTIONS)
    second = plant.next_question({first})
    api.mark(QUESTIONS, second, "decide", "success")
    third = plant.next_question({first, second})
    assert api.task_states(STREAMS, streams_run) == {"events": "deferred"}

    plant.reject_until_heard(third, note="restore them")
    plant.wait_for_stream(streams_run, "failed")
    told = "\n".join(api.log(STREAMS, streams_run, "events"))
    assert (
        "a person was asked, and the answer is rejected: events is failed: DataLost: offsets were lost unread" in told
    )
    assert not (control.home / "loss.json").exists()

    streams_run, fourth = plant.trigger_stream()
    api.mark(QUESTIONS, fourth, "decide", "failed")
    plant.wait_for_stream(streams_run, "failed")
    assert "a person was asked, and the answer is failed" in "\n".join(api.log(STREAMS, streams_run, "events"))

    # Paused when its question is parked: the answer has no effect, and the stream does not wait for it.
    streams_run, fifth = plant.trigger_stream()
    time.sleep(SCHEDULED_WITHIN_S)
    api.pause(QUESTIONS)
    assert plant.answer("ann", fifth, "Reject") == 200
    plant.wait_for_stream(streams_run, "failed")
    paused = f"the DAG {QUESTIONS} is paused, so it asks no person: unpause it, then clear the task"
    assert paused in "\n".join(api.log(STREAMS, streams_run, "events"))

    asked, streams_run = api.runs(QUESTIONS), api.trigger(STREAMS, {})
    plant.wait_for_stream(streams_run, "failed")
    told = "\n".join(api.log(STREAMS, streams_run, "events"))
    assert paused in told
    assert api.runs(QUESTIONS) == asked
    assert {(row["decision"], row["outcome"]) for row in plant.decisions()} == {
        ("reset-time", "rejected"),
        ("accept-loss", "rejected"),
    }
