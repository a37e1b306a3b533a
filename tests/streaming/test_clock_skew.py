"""A driver measures its host's clock skew by a real broker."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from tidemark.clock import Clock, wall_clock_ms
from tidemark.control.process import free_port, wait_until
from tidemark.local import broker as embedded
from tidemark.model.project.connections import Cluster
from tidemark.stream.driver import clock_skew
from tidemark.stream.driver.clock_skew import ClockSkew
from tidemark.stream.driver.heartbeats import ClockOffsets


def skew_of(address: str, clock: Clock, offsets: ClockOffsets | None = None) -> ClockSkew:
    return ClockSkew(Cluster(address), offsets or ClockOffsets(), "t", "s", "here", clock)


@pytest.mark.parametrize("ahead_ms", [0, 5_000, -3_600_000])
def test_the_offset_of_a_clock_is_found_within_its_error(broker: str, ahead_ms: int) -> None:
    skew = skew_of(broker, lambda: wall_clock_ms() + ahead_ms)
    found = skew.estimate(skew.producer())
    assert found is not None
    assert found.error_ms is not None
    assert abs(found.offset_ms + ahead_ms) <= found.error_ms < 1_000  # broker and test read one clock
    assert skew.newest() == found


def test_an_estimate_is_kept_for_five_minutes(broker: str) -> None:
    now = [wall_clock_ms()]
    skew = skew_of(broker, lambda: now[0])
    found = skew.estimate(skew.producer())
    now[0] += 300_000
    assert skew.newest() == found
    now[0] += 1
    assert skew.newest() is None


def test_estimates_are_made_beside_the_stream_and_kept_for_a_heartbeat(broker: str) -> None:
    offsets, made = ClockOffsets(), []
    skew = skew_of(broker, wall_clock_ms, offsets)
    assert skew.newest() is None
    began_ms = wall_clock_ms()
    skew.start()
    wait_until(lambda: made.extend(offsets.taken()) or made, "an estimate", 30)
    skew.end()
    (offset,) = made
    assert (offset.host, offset.samples, offset.reference) == ("here", 5, "brokers")
    assert began_ms <= offset.estimated_at_ms <= wall_clock_ms()
    assert offset.skew == skew.newest()


def test_a_topic_without_timestamps_gives_no_estimate(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.create_topics(broker, {"stamped_by_senders": 1})
    monkeypatch.setattr(clock_skew, "TOPIC", "stamped_by_senders")
    skew = skew_of(broker, wall_clock_ms)
    assert skew.estimate(Producer({"bootstrap.servers": broker})) is None
    assert skew.newest() is None


def test_a_broker_that_is_down_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clock_skew, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(clock_skew, "EVERY_S", 0.01)
    skew = skew_of(f"127.0.0.1:{free_port()}", wall_clock_ms)
    skew.start()
    wait_until(lambda: "cannot estimate the clock offset of here from the brokers" in caplog.text, "a warning", 30)
    time.sleep(1)
    skew.end()
    assert caplog.text.count("cannot estimate") == 1
    assert skew.newest() is None
