"""Supervision of Spark drivers: each record is once in the table.

Drivers and Airflow are killed, and new versions are deployed meanwhile.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from streaming.laws import check_accounting

from support.supervised_streams import NUMBERS, SPARK, Stage, Supervised, staged
from tidemark.control import process
from tidemark.control.folder import digest
from tidemark.local import airflow
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan
from tidemark_airflow.operators.driver import NAME

SEEN = """
[operators.seen]
kind = "sink"
input = "numbers"
table = "seen"
"""


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as running:
        yield running


@pytest.fixture
def stream(stage: Stage, tmp_path: Path) -> Iterator[Supervised]:
    stage.topology(SPARK).write_text(NUMBERS)
    supervised = Supervised(stage, tmp_path, SPARK)
    yield supervised
    supervised.end()


def numbers(stream: Supervised, table: str = "kept") -> list[int]:
    path = Layout(stream.warehouse).stream_table("numbers", "numbers", table)
    return sorted(scan(path).collect()["n"].to_list()) if path.exists() else []


def wait_for(stream: Supervised, expected: list[int], table: str = "kept") -> None:
    process.wait_until(lambda: numbers(stream, table) == expected, f"the numbers {expected} in {table}", 120)


def test_every_record_is_kept_once_across_kills_of_everything(
    stream: Supervised,
) -> None:
    stream.put(0, 1, 2)
    run_id = stream.run()
    wait_for(stream, [0, 1, 2])
    stream.put(3, 4)
    killed = stream.running()
    jvm = process.find(stream.driver.process_home, NAME)
    assert jvm is not None
    os.kill(jvm.pid, signal.SIGKILL)
    wait_for(stream, [0, 1, 2, 3, 4])
    pid = stream.running(but=killed)
    stream.stage.kill(*airflow.COMPONENTS)
    stream.put(5)
    wait_for(stream, [0, 1, 2, 3, 4, 5])
    stream.stage.start()
    assert stream.running() == pid

    file = stream.stage.topology(SPARK)
    file.write_text(NUMBERS + SEEN)
    stream.clear(run_id)
    stream.running(but=pid)
    stream.put(6, 7)
    wait_for(stream, [6, 7], "seen")
    beat = stream.driver.heartbeat()
    assert beat is not None
    assert (beat.digest, beat.epoch) == (digest(file), 3)
    stream.wait_for(run_id, "deferred")
    stream.drain(run_id)
    assert numbers(stream) == [0, 1, 2, 3, 4, 5, 6, 7]
    outcomes = (
        scan(Layout(stream.warehouse).stream_table("numbers", "numbers", "operator_batches")).collect().to_dicts()
    )
    check_accounting(outcomes)
    assert sum(row["records_in"] for row in outcomes if row["operator"] == "numbers") == 8


def test_a_contradicting_topology_fails_the_task_with_the_remedy(stream: Supervised) -> None:
    stream.put(0)
    stream.driver.control.keep_meanings({"the table kept": "the current row of n"})
    run_id = stream.trigger()
    stream.wait_for(run_id, "failed")
    stream.gone()
    assert stream.epoch() == 1
    log = stream.log(run_id)
    assert "a stream that fails permanently is not launched again" in log
    assert "topology_changed: the table kept: was the current row of n, is every row" in log
    assert "remedy: restore the previous file" in log
