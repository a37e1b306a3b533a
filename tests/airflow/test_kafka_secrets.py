"""Airflow gives a driver the secrets that its connections keep."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import TaskDeferred

from tidemark.control import process
from tidemark.control.folder import StreamState
from tidemark.errors import InvalidArgument
from tidemark.semantics.liveness import RightToKill
from tidemark_airflow.operators.driver import NAME, Driver
from tidemark_airflow.operators.stream import StreamOperator, Supervision

HERE = Path(__file__).parent
RIGHT_TO_KILL = RightToKill(silent_s=1.0, starting_s=10.0, working_s=2.0, draining_s=1.0)
TOML = """
name = "secured"
[operators.readings]
kind = "source"
kafka = "eu"
topic = "readings"
format = "avro"
registry = "main"
fields = "n bigint"
bound = "1 s"
[operators.kept]
kind = "sink"
input = "readings"
table = "kept"
[kafka.eu]
bootstrap = "127.0.0.1:1"
security_protocol = "SASL_SSL"
sasl_mechanism = "SCRAM-SHA-512"
username = { airflow = "kafka_eu" }
password = { airflow = "kafka_eu" }
ssl_ca = { airflow = "kafka_eu", field = "ca" }
[registry.main]
url = "https://127.0.0.1:2"
username = { airflow = "kafka_eu" }
password = { airflow = "kafka_eu" }
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    folders = [str(HERE / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    (tmp_path / "secured.toml").write_text(TOML)
    control = tmp_path / "control" / "secured"
    found = Driver(control / "readings", RIGHT_TO_KILL, shared=control / ".driver")
    yield found
    process.stop(found.process_home, NAME, grace_s=0)


def operator(driver: Driver) -> StreamOperator:
    return StreamOperator(
        task_id="readings",
        topology_file=driver.home.parents[2] / "secured.toml",
        sub_topology="readings",
        warehouse=str(driver.home.parents[2]),
        bootstrap="127.0.0.1:1",
        application=str(HERE / "stand_in.py"),
        supervision=Supervision(poll_s=0.05, first_look_s=0.05, restarts=1, right_to_kill=RIGHT_TO_KILL),
    )


def runs(driver: Driver) -> bool:
    beat, launch = driver.control.heartbeat(), driver.launch()
    return bool(beat and launch and beat.launch_id == launch.launch_id and beat.state is StreamState.RUNNING)


def test_secrets_of_a_connection_come_in_a_file_alone(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    secret, ca = secrets.token_hex(16), f"-----BEGIN CERTIFICATE-----{secrets.token_hex(16)}"
    connection = {"conn_type": "kafka", "login": "ann", "password": secret, "extra": {"ca": ca}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_EU", json.dumps(connection))
    with pytest.raises(TaskDeferred) as deferred:
        operator(driver).execute({})
    process.wait_until(lambda: runs(driver), "a running driver", 30)
    launch = driver.launch()
    assert launch is not None
    file = driver.home / f"secrets_{launch.launch_id}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {
        "eu.username": "ann",
        "eu.password": secret,
        "eu.ssl_ca": ca,
        "registry.main.username": "ann",
        "registry.main.password": secret,
    }
    others = [each for each in driver.home.parents[2].rglob("*") if each.is_file() and each != file]
    assert [each for each in others if secret.encode() in each.read_bytes()] == []
    environments = [(entry / "cmdline").read_bytes() for entry in Path("/proc").glob("[0-9]*") if entry.exists()]
    assert not any(secret.encode() in command for command in environments)
    assert secret not in f"{deferred.value.trigger.serialize()}{caplog.text}"
    # Java's clients may write it into the log of the driver, whose end the task shows.
    with driver.log_file.open("a") as log:
        log.write(f"ann has password={secret}\n")
    process.stop(driver.process_home, NAME, grace_s=0)
    with pytest.raises(TaskDeferred):
        operator(driver).resume({}, {"verdict": "dead"})
    shown = capsys.readouterr().out
    assert "\nann has password=*****" in shown
    assert secret not in shown


@pytest.mark.parametrize(
    ("connection", "seen"),
    [
        (None, r"kafka\.eu\.username: Airflow has no connection kafka_eu; create it, or correct the name"),
        ({"login": "ann"}, r"kafka\.eu\.password: Airflow's connection kafka_eu has no password; add it"),
        (
            {"login": "ann", "password": "p"},
            r"kafka\.eu\.ssl_ca: Airflow's connection kafka_eu has no key ca in its ex",
        ),
    ],
)
def test_a_connection_without_the_secret_is_named(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, connection: dict[str, str] | None, seen: str
) -> None:
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_EU", json.dumps({"conn_type": "kafka", **connection}))
    with pytest.raises(InvalidArgument, match=seen):
        operator(driver).execute({})
    assert not runs(driver)
