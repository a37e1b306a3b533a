"""Real Airflow supervises streams whose control folder is in a store.

These are the cases of tests/airflow/test_supervision.py. A driver elsewhere, or a stopped one, is silent for a minute
before it is replaced.
"""

from __future__ import annotations

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
from tidemark.local import airflow

pytestmark = pytest.mark.long
KILLED = [("scheduler",), ("triggerer",), tuple(airflow.COMPONENTS)]


@pytest.fixture(scope="module")
def stage(store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    missed = {
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "10",
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    }
    home = tmp_path_factory.mktemp("stage")
    with pytest.MonkeyPatch.context() as env:
        env.setenv("AIRFLOW_HOME", str(home / "airflow"))
        with staged(home, missed) as running:
            yield running


@pytest.fixture
def stream(stage: Stage, warehouse: Path) -> Iterator[Supervised]:
    supervised = Supervised(stage, warehouse)
    yield supervised
    supervised.end()


@pytest.mark.parametrize("killed", KILLED, ids=" and ".join)
def test_a_stream_outlives_the_kill_of_any_part_of_airflow(stream: Supervised, killed: tuple[str, ...]) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.stage.kill(*killed)
    stream.stage.start()
    assert stream.running() == pid
    assert stream.running(but=stream.kill()) != pid
    stream.drain(run_id)
    assert stream.epoch() == 2


def test_a_stopped_driver_is_replaced(stream: Supervised) -> None:
    run_id = stream.run()
    stream.running(but=stream.kill(signal.SIGSTOP))
    stream.drain(run_id)
    assert stream.epoch() == 2


def test_a_stream_that_keeps_failing_stops_with_its_reason(stream: Supervised) -> None:
    stream.behave("fail")
    run_id = stream.trigger()
    stream.wait_for(run_id, "failed")
    stream.gone()
    assert stream.epoch() == 2
    assert "fails 2 times in a row in the same way is not launched again" in stream.log(run_id)


def test_a_changed_topology_file_comes_with_the_next_driver(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    with stream.stage.topology(STAND_IN).open("a") as changed:
        changed.write("# changed\n")
    stream.clear(run_id)
    stream.running(but=pid)
    beat = stream.driver.heartbeat()
    assert beat is not None
    assert beat.epoch == 2
    stream.wait_for(run_id, "deferred")
    stream.drain(run_id)


def test_a_driver_that_died_with_airflow_is_replaced(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.stage.kill(*airflow.COMPONENTS)
    os.kill(pid, signal.SIGKILL)
    stream.stage.start()
    assert stream.running(but=pid) != pid
    stream.drain(run_id)
    assert stream.epoch() == 2
