"""The services of docker/compose.yaml do their work, and continue after each of their containers was killed.

The tests are one story, in the order of this file.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from containers.running import NAME, PATIENCE_S, POLL_S, PROJECT, SERVICES, Containers

from tidemark.control import process
from tidemark.local.airflow_api import ENDED, SUCCESS, AirflowApi, AirflowError
from tidemark.local.conductor import dag_id

pytestmark = pytest.mark.long  # `tests/unit/test_docker.py` has what can be seen without Docker
STREAMS, REPORTS, CHECKS = (dag_id("flights", part) for part in ("streams", "reports", "sla_check"))
SLOWED = "carrier_state"
"""An operator that sleeps after each batch: its SLA, `carrier_state_is_quick`, breaks."""
BROKEN_SLA = "carrier_state_is_quick"
SLAS = tomllib.loads((PROJECT / "expectations" / "slas.toml").read_text())["flights"]
GROWS_WITHIN_S = 120.0
WORKER = "a worker with an executor"
KILLED = ("scheduler", "triggerer", "spark-master", WORKER, "kafka", "postgres", "api-server")
DAY, NEXT_DAY, AFTER = "2013-06-27", "2013-06-28", "2013-06-29"
FATAL = """
import json
from confluent_kafka import Producer
sent = {"flight": "UA1", "carrier": "UA", "origin": "EWR", "dest": "SFO", "tailnum": "N1", "status": "departed"}
settings = {"bootstrap.servers": "kafka:9092", "compression.type": "zstd", "message.max.bytes": 1_000_000_000}
producer = Producer(settings)
producer.produce("flight_events", json.dumps(sent).encode() + b" " * 300_000_000, b"UA1", 0)
assert producer.flush(120) == 0
"""
"""Sends a record of some kilobytes that a JVM with 1 GB cannot decompress."""


@pytest.fixture(scope="module")
def began_at() -> datetime:
    """The time before the first record, in UTC."""
    return datetime.now(UTC)


def instant(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def test_every_container_is_of_one_image_and_a_second_start_changes_none(containers: Containers) -> None:
    before = containers.inspected()
    assert before.keys() == SERVICES.keys()
    assert len({each["Image"] for name, each in before.items() if name != "postgres"}) == 1
    containers.compose("up", "-d", "--build")
    after = containers.inspected()
    assert {name: each["Id"] for name, each in after.items()} == {name: each["Id"] for name, each in before.items()}


def test_no_volume_is_anonymous(containers: Containers) -> None:
    mounts = [mount for each in containers.inspected().values() for mount in each["Mounts"]]
    volumes = {mount["Name"] for mount in mounts if mount["Type"] == "volume"}
    declared = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert volumes == {f"{NAME}_{name}" for name in declared}


def test_executors_find_one_container_by_the_name_of_the_drivers(containers: Containers) -> None:
    (name,) = containers.inside("printenv", "SPARK_LOCAL_HOSTNAME", service="scheduler").stdout.split()
    resolved = containers.inside("getent", "ahostsv4", name, service="spark-worker-1").stdout.splitlines()
    networks = containers.inspected()["scheduler"]["NetworkSettings"]["Networks"]
    assert {line.split()[0] for line in resolved} == {network["IPAddress"] for network in networks.values()}


def test_only_the_password_of_the_secrets_logs_in(airflow: AirflowApi) -> None:
    assert airflow.is_healthy()
    assert airflow.import_errors() == {}
    with pytest.raises(AirflowError) as refused:
        AirflowApi(airflow.url, "admin", "guessed").import_errors()
    assert refused.value.status == 401


@pytest.mark.usefixtures("began_at")
def test_two_days_of_flights_are_read(containers: Containers, airflow: AirflowApi) -> None:
    airflow.unpause(STREAMS)
    airflow.trigger(STREAMS, {"slow": [f"{SLOWED}=400"], "first_report": False})
    sent = containers.play(DAY, AFTER)
    containers.wait_for_records(sent)
    assert containers.records() == sent
    process.wait_until(
        lambda: containers.streams()["carriers"]["records_in"] > 0, "results of carriers", PATIENCE_S, poll_s=POLL_S
    )


def run_once(airflow: AirflowApi, dag: str, conf: dict[str, str]) -> None:
    """Runs *dag* once, with success."""
    airflow.unpause(dag)
    run_id = airflow.trigger(dag, conf)
    has_ended = partial(is_over, airflow, dag, run_id)
    process.wait_until(has_ended, f"the end of {dag}", PATIENCE_S, poll_s=POLL_S)
    assert airflow.run_state(dag, run_id) == SUCCESS, airflow.task_states(dag, run_id)


def is_over(airflow: AirflowApi, dag: str, run_id: str) -> bool:
    return airflow.run_state(dag, run_id) in ENDED


def test_there_are_reports_checks_and_an_alert(containers: Containers, airflow: AirflowApi, began_at: datetime) -> None:
    # Drivers commit latencies about each minute, and a report reads what is committed.
    process.wait_until(
        lambda: containers.committed_rows("latency_minutes") > 0, "committed latencies", PATIENCE_S, poll_s=POLL_S
    )
    run_once(airflow, REPORTS, {"from": instant(began_at - timedelta(hours=1)), "to": instant(datetime.now(UTC))})
    run_once(airflow, CHECKS, {})
    (counted,) = containers.sql(
        "SELECT (SELECT count(*) FROM latency_rollup) AS reported, "
        "(SELECT count(DISTINCT sla) FROM sla_results) AS checked"
    )
    assert counted["reported"] > 0
    assert counted["checked"] == len(SLAS)
    # The check that the schedule made when its DAG was unpaused may have been the one with news.
    sent = containers.inside("grep", "-rl", BROKEN_SLA, f"/opt/airflow/logs/dag_id={CHECKS}", check=False).stdout
    assert "task_id=check_sla" in sent, containers.sql("SELECT sla, verdict, observed_ms FROM sla_results")


def used_worker(containers: Containers) -> str:
    """Returns a worker that has an executor."""
    return str(next(worker["host"] for worker in containers.master()["workers"] if worker["coresused"] > 0))


def tell(capsys: pytest.CaptureFixture[str], line: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")


@pytest.mark.parametrize("killed", KILLED)
def test_records_grow_again_after_a_kill(
    containers: Containers, capsys: pytest.CaptureFixture[str], killed: str
) -> None:
    service = used_worker(containers) if killed == WORKER else killed
    applications = [each["id"] for each in containers.master()["activeapps"]]
    before, restarts = containers.records(), containers.restarts(service)
    containers.kill(service)
    began = time.monotonic()
    sent = containers.play(NEXT_DAY, AFTER)
    process.wait_until(lambda: containers.records() > before, "more records", PATIENCE_S, poll_s=POLL_S)
    grown_after_s = time.monotonic() - began
    containers.wait_until_healthy()
    healthy_after_s, load = time.monotonic() - began, os.getloadavg()[0]
    tell(
        capsys, f"{service}: records after {grown_after_s:.0f} s, healthy after {healthy_after_s:.0f}, load {load:.0f}"
    )
    assert containers.restarts(service) == restarts + 1
    assert grown_after_s < GROWS_WITHIN_S
    containers.wait_for_records(before + sent)
    if killed == "spark-master":
        assert [each["id"] for each in containers.master()["activeapps"]] == applications != []


def test_a_driver_that_dies_is_replaced(containers: Containers, capsys: pytest.CaptureFixture[str]) -> None:
    before = containers.records()
    epochs = "SELECT max(epoch) AS epoch FROM batches WHERE sub_topology = 'status'"
    (epoch,) = containers.sql(epochs)
    containers.kill_processes("scheduler", "jobs/stream.py")
    began = time.monotonic()
    sent = containers.play(NEXT_DAY, AFTER)
    process.wait_until(lambda: containers.records() > before, "more records", PATIENCE_S, poll_s=POLL_S)
    tell(capsys, f"the driver: records after {time.monotonic() - began:.0f} s")
    containers.wait_for_records(before + sent)
    (later,) = containers.sql(epochs)
    assert later["epoch"] > epoch["epoch"]


def test_streams_continue_when_all_containers_were_removed(containers: Containers) -> None:
    before = containers.records()
    containers.compose("down")
    containers.compose("up", "-d")
    containers.wait_until_healthy()
    sent = containers.play(NEXT_DAY, AFTER)
    containers.wait_for_records(before + sent)


def test_a_record_that_kills_jvms_is_found_and_left_out(containers: Containers) -> None:
    before = containers.records()
    containers.inside("python", "-c", FATAL, service="scheduler")
    found = "SELECT source, reason FROM quarantine WHERE reason = 'kills_drivers'"
    process.wait_until(lambda: bool(containers.sql(found)), "the record in quarantine", 2 * PATIENCE_S, poll_s=10.0)
    assert containers.sql(found) == [{"source": "flight_events", "reason": "kills_drivers"}]
    containers.wait_for_records(before + 1)


def test_every_count_agrees_and_streams_end_by_a_command_in_a_container(
    containers: Containers, airflow: AirflowApi, began_at: datetime
) -> None:
    before, until = containers.records(), datetime.now(UTC) - timedelta(minutes=2)
    containers.wait_for_records(before + containers.play(NEXT_DAY, AFTER))
    assert containers.inside("tidemark", "why", "flights").stdout
    (run_id,) = (run_id for run_id, state in airflow.runs(STREAMS).items() if state == "running")
    containers.inside("tidemark", "down", "flights")
    has_ended = partial(is_over, airflow, STREAMS, run_id)
    process.wait_until(has_ended, "the end of the streams' run", PATIENCE_S, poll_s=POLL_S)
    assert airflow.run_state(STREAMS, run_id) == SUCCESS
    assert {name: stream["state"] for name, stream in containers.streams().items()} == {
        "status": "drained",
        "carriers": "drained",
    }
    interval = ("--from", instant(began_at - timedelta(hours=1)), "--to", instant(until))
    for source in ("flight_events", "weather"):
        # The record that killed JVMs is read once more, for which the other containers have no memory.
        counts = containers.inside("tidemark", "reconcile", source, *interval, service="scheduler").stdout
        verdict = counts.splitlines()[-1]
        assert verdict == "whole: every count agrees", source


def test_no_volume_became_anonymous_meanwhile(containers: Containers) -> None:
    test_no_volume_is_anonymous(containers)
    made = containers.engine.volumes() - containers.volumes_before
    assert {name for name in made if not name.startswith(f"{NAME}_")} == set()
