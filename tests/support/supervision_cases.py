"""Cases of supervision that hold wherever the control folder lies.

A module imports them and has the fixture `stream`.
"""

from __future__ import annotations

import pytest

from support.supervised_streams import Supervised
from tidemark_airflow.operators.stream import BY_USER

LONG = pytest.mark.long


@LONG
def test_a_driver_whose_batch_stands_still_is_replaced(stream: Supervised) -> None:
    stream.behave("stuck")
    run_id = stream.run()
    pid = stream.running()
    stream.behave("")
    stream.running(but=pid)
    stream.drain(run_id)
    assert stream.epoch() == 2


@LONG
def test_a_cleared_task_drains_its_driver_and_launches_the_next(stream: Supervised) -> None:
    run_id = stream.run()
    pid = stream.running()
    stream.clear(run_id)
    stream.running(but=pid)
    stream.wait_for(run_id, "deferred")
    stream.drain(run_id)


@pytest.mark.parametrize(("state", "behaviour"), [("failed", ""), ("success", "ignore drain")])
def test_a_task_that_is_marked_leaves_no_driver(stream: Supervised, state: str, behaviour: str) -> None:
    stream.behave(behaviour)
    run_id = stream.run()
    stream.running()
    stream.mark(run_id, state)
    stream.gone()
    assert stream.driver.drained_by() == BY_USER
    assert stream.state(run_id) == state
