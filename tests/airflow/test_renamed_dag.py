"""Airflow leaves no driver without a task when its DAG is renamed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.supervised_streams import STAND_IN, WITHIN_S, Supervised, staged
from tidemark.control.process import wait_until
from tidemark_airflow.operators.stream import BY_USER

pytestmark = pytest.mark.long
RENAMED = replace(STAND_IN, dag="renamed")
SOON = {
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "2",
    "DAG_PROCESSOR__STALE_DAG_THRESHOLD": "5",
    "SCHEDULER__PARSING_CLEANUP_INTERVAL": "2",
}
"""How soon Airflow notices that a DAG has no file any more."""


def test_drivers_of_a_renamed_dag_are_adopted_or_drained(tmp_path: Path) -> None:
    with staged(tmp_path / "stage", SOON) as stage:
        adopted, left = (Supervised(stage, tmp_path / name) for name in ("adopted", "left"))
        for stream in (adopted, left):
            stream.run()
        pid, left_pid = adopted.running(), left.running()
        (stage.home / RENAMED.dag).write_text(RENAMED.dag)
        wait_until(lambda: stage.api.has_dag(RENAMED.dag), "the renamed DAG", WITHIN_S)
        stage.api.unpause(RENAMED.dag)
        adopted.kind = left.kind = RENAMED
        run_id = adopted.run()
        left.gone()
        assert left.driver.drained_by() == BY_USER
        assert adopted.running() == pid, "another task looks after it"
        assert adopted.epoch() == 1
        of_left = left.run()
        assert left.running() != left_pid
        assert left.epoch() == 2
        adopted.running(but=adopted.kill())
        adopted.drain(run_id)
        left.drain(of_left)
        assert (adopted.epoch(), left.epoch()) == (2, 2)
