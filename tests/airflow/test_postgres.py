"""Airflow on PostgreSQL supervises a stream as on SQLite."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.postgres import NEEDS_POSTGRES, Database, served
from support.supervised_streams import Stage, Supervised, staged
from tidemark.control import process
from tidemark.errors import TidemarkError


@pytest.fixture
def database() -> Iterator[Database]:
    """An empty database on the loopback interface."""
    with served() as running:
        yield running


@pytest.fixture
def stream(database: Database, tmp_path: Path) -> Iterator[Supervised]:
    """A stream that runs under an Airflow with *database*."""
    with staged(tmp_path / "stage", {"DATABASE__SQL_ALCHEMY_CONN": database.address}) as stage:
        supervised = Supervised(stage, tmp_path / "warehouse")
        try:
            yield supervised
        finally:
            supervised.end()


@pytest.mark.long
@NEEDS_POSTGRES
def test_a_stream_outlives_scheduler_and_triggerer(stream: Supervised) -> None:
    stage, run_id, pid = stream.stage, stream.run(), stream.running()
    stage.kill("scheduler", "triggerer")
    stage.start()
    assert stream.running() == pid
    stream.running(but=stream.kill())
    stream.drain(run_id)
    assert stream.epoch() == 2


def has_noticed(stage: Stage, name: str) -> bool:
    """Returns true if *name* has ended, or misses its database."""
    home = stage.home / "airflow"
    return process.find(home, name) is None or "OperationalError" in (home / f"{name}.log").read_text()


def is_started(stage: Stage) -> bool:
    """Starts the parts that have ended, as their supervisor would."""
    try:
        stage.start()
    except TidemarkError:  # one has ended meanwhile: some time after it lost its database
        return False
    return True


@pytest.mark.long
@NEEDS_POSTGRES
def test_a_stream_outlives_a_restart_of_the_database(database: Database, stream: Supervised) -> None:
    stage, run_id, pid = stream.stage, stream.run(), stream.running()
    database.kill()
    for name in ("scheduler", "triggerer"):
        process.wait_until(partial(has_noticed, stage, name), f"{name} without its database", 60)
    assert not stage.api.is_healthy()
    assert stream.running() == pid
    database.start()
    process.wait_until(partial(is_started, stage), "a healthy Airflow", 120)
    assert stream.running() == pid
    assert stream.state(run_id) == "deferred"
    stream.kill()

    def is_replaced() -> bool:
        return is_started(stage) and stream.drivers() not in ([], [pid])

    process.wait_until(is_replaced, "the next driver", 180)
    stream.running(but=pid)
    stream.drain(run_id)
    assert stream.epoch() == 2
