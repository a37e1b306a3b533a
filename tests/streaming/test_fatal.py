"""A record that kills every JVM is skipped and quarantined.

Its stream continues.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver

from support.topologies import sink, source, topology_of
from tidemark.control.folder import StreamState
from tidemark.embedded import broker as embedded

NOON = 1_400_000_000_000
FATAL = 2
TOML = topology_of(
    {"name": "fatal", "trigger": "1 s"},
    events=source(topic="fatal_events", fields="n int, at bigint", timestamp="at", max_ahead=None),
    kept=sink("events", table="kept"),
)


def send(address: str, topic: str, numbers: range, *, blanks: int = 0) -> None:
    """Sends a compressible record per number, followed by *blanks*.

    zstd makes each some kilobytes.
    """
    settings = {"bootstrap.servers": address, "compression.type": "zstd", "message.max.bytes": 1_000_000_000}
    producer = Producer(settings)
    for n in numbers:
        producer.produce(topic, (json.dumps({"n": n, "at": NOON + n}) + " " * blanks).encode(), b"k", 0)
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
    assert f"topic '{topic}', partition 0, offset {FATAL} kills its reader: skipping it" in log
