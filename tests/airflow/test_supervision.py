"""Real Airflow supervises streams: after a kill at most one driver runs.

The same holds after tasks were cleared or marked.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.supervised_streams import STAND_IN, Stage, Supervised, staged
from support.supervision_cases import (  # noqa: F401 - collected here
    test_a_cleared_task_drains_its_driver_and_launches_the_next,
    test_a_driver_whose_batch_stands_still_is_replaced,
    test_a_task_that_is_marked_leaves_no_driver,
)
from tidemark.control import process
from tidemark.control.folder import digest
from tidemark.local import airflow
from tidemark_airflow.operators.stream import BY_USER

KILLED = [("scheduler",), ("triggerer",), ("api-server",), tuple(airflow.COMPONENTS)]
SUPERVISING = ("scheduler", "triggerer")
"""The parts that launch drivers and look after them.

A start of the others costs 13 CPU seconds.
"""
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # How soon a task is missed whose worker was killed; by default after 300 s.
    missed = {
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    }
    with staged(tmp_path_factory.mktemp("stage"), missed) as running:
        yield running


@pytest.fixture
def stream(stage: Stage, tmp_path: Path) -> Iterator[Supervised]:
    supervised = Supervised(stage, tmp_path)
    yield supervised
    supervised.end()


def test_a_stream_holds_no_worker_and_ends_when_it_is_drained(stream: Supervised) -> None:
    run_id = stream.run()
    stream.running()
    stream.drain(run_id)
    assert stream.epoch() == 1


@pytest.mark.parametrize("killed", [*(pytest.param(one, marks=LONG) for one in KILLED), SUPERVISING], ids=" and ".join)
def test_a_stream_outlives_the_kill_of_any_part_of_airflow(stream: Supervised, killed: tuple[str, ...]) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.stage.kill(*killed)
    stream.stage.start()
    assert stream.running() == pid
    assert stream.running(but=stream.kill()) != pid
    stream.drain(run_id)
    assert stream.epoch() == 2


@LONG  # the test before it kills a driver, too
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_driver_that_is_killed_or_stopped_is_replaced(stream: Supervised, number: signal.Signals) -> None:
    run_id = stream.run()
    stream.running(but=stream.kill(number))
    stream.drain(run_id)
    assert stream.epoch() == 2


@LONG
@pytest.mark.parametrize("killed", ["the task", "its worker"])
def test_a_driver_whose_launcher_is_killed_is_adopted_next(stream: Supervised, killed: str) -> None:
    (stream.warehouse / "launch slowly").touch()
    run_id = stream.trigger()
    pid = stream.running()
    task = int((stream.warehouse / "task.pid").read_text())
    worker = int(Path(f"/proc/{task}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(worker if killed == "its worker" else task, signal.SIGKILL)
    stream.wait_for(run_id, "deferred")
    assert stream.running() == pid
    stream.drain(run_id)
    assert stream.epoch() == 1


@LONG
def test_a_stream_that_keeps_failing_stops_with_its_reason(stream: Supervised) -> None:
    stream.behave("fail")
    run_id = stream.trigger()
    stream.wait_for(run_id, "failed")
    stream.gone()
    assert stream.epoch() == 2
    log = stream.log(run_id)
    assert (
        "fails 2 times in a row in the same way is not launched again: status is failed: no topic flight_events" in log
    )


@LONG
def test_a_changed_topology_file_comes_with_the_next_driver(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    file = stream.stage.topology(STAND_IN)
    with file.open("a") as changed:
        changed.write("# changed\n")
    stream.clear(run_id)
    stream.running(but=pid)
    beat = stream.driver.heartbeat()
    assert beat is not None
    assert beat.digest == digest(file)
    stream.wait_for(run_id, "deferred")
    stream.drain(run_id)


@LONG
def test_two_runs_at_once_look_after_one_driver(stream: Supervised) -> None:
    run_ids = [stream.trigger(), stream.trigger()]
    for run_id in run_ids:
        stream.wait_for(run_id, "deferred")
    pid = stream.running(but=stream.kill())
    for run_id in run_ids:
        stream.wait_for(run_id, "deferred")
    assert stream.running() == pid
    stream.drain(*run_ids)
    assert stream.epoch() == 2


@LONG
def test_while_a_dag_is_paused_a_dead_driver_is_not_replaced(stream: Supervised) -> None:
    run_id = stream.run()
    stream.running()
    try:
        stream.stage.api.pause(STAND_IN.dag)
        pid = stream.kill()
        stream.wait_for(run_id, "scheduled")
        assert stream.drivers() == []
    finally:
        stream.stage.api.unpause(STAND_IN.dag)
    stream.running(but=pid)
    stream.drain(run_id)


@LONG
def test_a_task_cleared_without_a_triggerer_gets_a_new_driver(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.stage.kill("triggerer")
    try:
        stream.clear(run_id)
        process.wait_until(lambda: stream.state(run_id) != "deferred", "the next try", 30)
        stream.wait_for(run_id, "deferred")
        new = stream.running(but=pid)
    finally:
        stream.stage.start()
    assert stream.running() == new
    stream.drain(run_id)
    assert stream.epoch() == 2


@LONG
def test_a_task_marked_without_a_triggerer_ends_its_driver_later(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.stage.kill("triggerer")
    try:
        stream.mark(run_id, "failed")
        assert stream.running() == pid
    finally:
        stream.stage.start()
    stream.gone()
    assert stream.driver.drained_by() == BY_USER
