"""A record at which every driver is killed, or fails, is skipped and quarantined.

Its stream continues.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from streaming.drivers import PROJECT, OnlyDriver

from support.command_line import tidemark
from support.topologies import sink, source, topology_of
from tidemark.control.folder import StreamState
from tidemark.local import broker as embedded
from tidemark.model.project.spark_settings import jars
from tidemark.storage import library

NOON = 1_400_000_000_000
FATAL = 2
TOML = topology_of(
    {"name": "fatal", "trigger": "1 s"},
    events=source(topic="fatal_events", fields="n int, at bigint", timestamp="at", max_ahead=None),
    kept=sink("events", table="kept"),
)


def send(address: str, topic: str, numbers: range, *, blanks: int = 0, timestamp_ms: int = 0) -> None:
    """Sends a compressible record per number, followed by *blanks*, with the broker's time *timestamp_ms* (0: now).

    zstd makes each some kilobytes.
    """
    settings = {"bootstrap.servers": address, "compression.type": "zstd", "message.max.bytes": 1_000_000_000}
    producer = Producer(settings)
    for n in numbers:
        producer.produce(
            topic, (json.dumps({"n": n, "at": NOON + n}) + " " * blanks).encode(), b"k", 0, timestamp=timestamp_ms
        )
        assert producer.flush(60) == 0


@pytest.mark.long
def test_the_record_that_kills_drivers_is_passed_over(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "fatal_events"
    embedded.create_topics(broker, {topic: 1})
    send(broker, topic, range(FATAL))
    send(broker, topic, range(FATAL, FATAL + 1), blanks=300_000_000)
    send(broker, topic, range(FATAL + 1, 4))
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xmx512m")
    for _ in range(2):
        with OnlyDriver(tmp_path, TOML, broker) as driver:
            assert f"topic '{topic}', partition 0, offsets 0 until 4" in driver.reason_to_fail()
    with OnlyDriver(tmp_path, TOML, broker) as driver:
        driver.wait(lambda: len(driver.rows("kept")) == 3, "the other records", patience_s=600)
        send(broker, topic, range(4, 6))
        rows = driver.wait_for("kept", 5)
        (bad,) = driver.rows("quarantine")
        heartbeat = driver.control.heartbeat()
        assert heartbeat is not None
        assert heartbeat.state is StreamState.RUNNING
        assert driver.drain() == 0
    assert sorted((row["source_offset"], row["n"]) for row in rows) == [(n, n) for n in range(6) if n != FATAL]
    assert {key: bad[key] for key in ("source", "topic", "partition", "offset", "reason", "key", "value")} == {
        "source": "events", "topic": topic, "partition": 0, "offset": FATAL, "reason": "kills_drivers", "key": None,
        "value": None,
    }  # fmt: skip
    log = (tmp_path / "events.log").read_text()
    assert f"topic '{topic}', partition 0, offset {FATAL} ends its reader: skipping it" in log


FAULT = """

_run = Pipeline.run


def _fails(self, inputs, moves, moment):
    if any((run.output["n"] == 2).any() for run in inputs.values() if "n" in run.output.columns):
        raise ArithmeticError(f"{sum(run.output.height for run in inputs.values())} records have a 2 among them")
    return _run(self, inputs, moves, moment)


Pipeline.run = _fails
"""
"""Code that makes operators raise an error at the record 2; its message counts the records of the batch."""


def faulty_archive(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an archive of the package with FAULT, and removes what else would lead a driver to the package.

    Such a driver has the code of one on a host with neither a checkout nor an installation.
    """
    shutil.copytree(library.PACKAGE, home / "code" / "tidemark", ignore=shutil.ignore_patterns("__pycache__"))
    with (home / "code" / "tidemark" / "stream" / "decide" / "pipeline.py").open("a") as file:
        file.write(FAULT)
    with monkeypatch.context() as patch:
        patch.setattr(library, "PACKAGE", home / "code" / "tidemark")
        archive = library.archive(home)
    # Beside the original the script would find the package of the checkout.
    monkeypatch.setattr(OnlyDriver, "script", (shutil.copy(PROJECT / "jobs" / "stream.py", home / "stream.py"),))
    for name in [name for name in os.environ if name.startswith(("PYTHONPATH", "PYSPARK", "SPARK"))]:
        monkeypatch.delenv(name)
    return archive


def submitted(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Returns the program of a driver from an archive, whose jars spark-submit alone knows."""
    archive = faulty_archive(home, monkeypatch)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return (
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]", "--py-files", str(archive), "--jars", ",".join(jars(PROJECT))),
        *("--properties-file", str(PROJECT / "docker" / "spark-defaults.conf")),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1"),
    )


FAILING = TOML.replace("fatal_events", "failing_events")
MIXED = topology_of(
    {"name": "fatal", "trigger": "1 s"},
    events=source(topic="failing_mixed", fields="n int, at bigint", timestamp="at", max_ahead=None),
    lines=source(topic=None, files="in", fields="n int, at bigint", timestamp="at"),
    both={"kind": "union", "inputs": ["events", "lines"]},
    kept=sink("both", table="kept"),
)
"""Files beside a topic with a record that Spark's reader cannot read: that one is read in Python."""


def quarantined(driver: OnlyDriver, *others: int) -> dict[str, object]:
    """Returns what is known of the record in quarantine; 1 and *others* are kept."""
    # The record begins a part of the batch of its own, after that of the other.
    driver.wait(lambda: bool(driver.rows("quarantine")), "the record that is skipped", patience_s=900)
    (bad,), kept = driver.rows("quarantine"), driver.wait_for("kept", 1 + len(others))
    assert driver.drain() == 0
    assert sorted(row["n"] for row in kept) == [1, *others]
    return {column: bad[column] for column in ("source", "partition", "offset", "reason", "detail", "key", "value")}


BAD = {
    "source": "events", "partition": 0, "offset": 1, "key": b"k",
    "value": json.dumps({"n": 2, "at": NOON + 2}).encode(),
}  # fmt: skip
COMMAND = "tidemark accept-loss fatal events --record events/0/1 --by NAME --reason TEXT"


def test_a_person_lets_a_driver_skip_a_record_at_which_it_fails(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warehouse" / "in").mkdir(parents=True)
    (tmp_path / "warehouse" / "in" / "a.json").write_text(json.dumps({"n": 3, "at": NOON}))
    admin = AdminClient({"bootstrap.servers": broker})
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    admin.create_topics([NewTopic("failing_mixed", 1, 1, config=any_time)])["failing_mixed"].result()
    send(broker, "failing_mixed", range(1, 2))
    send(broker, "failing_mixed", range(2, 3), timestamp_ms=NOON * 1_000_000)
    program = submitted(tmp_path, monkeypatch)
    with OnlyDriver(tmp_path, MIXED, broker, program=program) as driver:
        reason = driver.reason_to_fail()
    assert re.match("ArithmeticError: . records have a 2 among them\nthe record: source events, partition 0, ", reason)
    assert reason.endswith(f"\nto continue without the record events/0/1: {COMMAND}")
    for folder in ("topologies", "expectations"):
        (tmp_path / folder).mkdir()
    shutil.copy(tmp_path / "fatal.toml", tmp_path / "topologies")
    words = [{"NAME": "Ann", "TEXT": "not ours"}.get(word, word) for word in COMMAND.split()[1:]]
    done = tidemark(tmp_path, "--warehouse", str(tmp_path / "warehouse"), *words)
    assert (done.returncode, done.stderr) == (0, "")
    with OnlyDriver(tmp_path, MIXED, broker, program=program) as driver:
        bad = quarantined(driver, 3)
    assert bad == {**BAD, "reason": "accepted_loss", "detail": "given up by Ann: not ours"}


@pytest.mark.long
def test_the_record_at_which_drivers_fail_is_passed_over(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.create_topics(broker, {"failing_events": 1})
    send(broker, "failing_events", range(1, 3))
    is_passed_over(tmp_path, broker, submitted(tmp_path, monkeypatch), FAILING)


def is_passed_over(home: Path, broker: str, program: Sequence[str], toml: str) -> None:
    """Starts three drivers of a stream with two records; the third finds the second one, at which they fail."""
    for _ in range(2):
        with OnlyDriver(home, toml, broker, program=program) as driver:
            assert driver.reason_to_fail().startswith("ArithmeticError: 2 records have a 2 among them")
    with OnlyDriver(home, toml, broker, program=program) as driver:
        bad = quarantined(driver)
    assert bad == {**BAD, "reason": "fails_drivers", "detail": "ArithmeticError: 1 records have a 2 among them"}
