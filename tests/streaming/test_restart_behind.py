"""A real driver that restarts far behind estimates the end.

Twenty seeds are played in tests/delta/test_restart_behind.py, by a clock that no other work slows down.
"""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver
from streaming.sending import NOON_MS, passing

from tidemark.embedded import broker as embedded

TOPIC, PARTITIONS = "behind", 3
PER_BATCH, BATCHES, PER_S = 1_500, 20, 100
"""Most records of a batch; batches behind; records each second."""
TRIGGER = "3 s"
"""The speed of reading, if a batch takes less."""


def send(address: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for n in numbers:
        producer.produce(TOPIC, json.dumps({"n": n, "at": NOON_MS + n}), "k", n % PARTITIONS)
    assert producer.flush(120) == 0


@pytest.mark.long  # a minute and a half of records behind
def test_a_killed_driver_estimates_when_it_has_caught_up(broker: str, tmp_path: Path) -> None:
    toml = passing("behind", TOPIC).replace('trigger = "1 s"', f'trigger = "{TRIGGER}"')
    toml = toml.replace(f'topic = "{TOPIC}"', f'topic = "{TOPIC}"\nmax_records = {PER_BATCH}')
    embedded.create_topics(broker, {TOPIC: PARTITIONS})
    is_over, sent = threading.Event(), PER_BATCH * (BATCHES + 4)

    def keep_sending() -> None:
        n = sent
        while not is_over.wait(1):
            send(broker, range(n, n := n + PER_S))

    send(broker, range(sent))
    with OnlyDriver(tmp_path, toml, broker) as driver:
        driver.wait_for("kept", 2 * PER_BATCH)
        driver.kill_in_the_middle_of_a_batch()
        last = driver.rows("batches")[-1]["batch_id"]
    sender = threading.Thread(target=keep_sending)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        sender.start()
        try:
            driver.wait(lambda: ended_ms(driver, last) is not None, "the end of catching up", 400)
        finally:
            is_over.set()
            sender.join()
        end_ms = ended_ms(driver, last)
        beats = [beat for beat in driver.rows("heartbeats") if beat["epoch"] == 2 and beat["state"] == "running"]
    assert end_ms is not None
    half_ms = (beats[0]["since"] + end_ms) / 2
    estimates = [beat for beat in beats if beat["eta_at"] is not None and beat["at"] <= half_ms]
    assert estimates, beats
    beat = estimates[-1]
    assert abs(beat["eta_at"] - end_ms) <= 0.2 * (end_ms - beat["at"])


def ended_ms(driver: OnlyDriver, last: int) -> int | None:
    """Returns when a batch had read what waited after the one before."""
    # Records come all the time, so a batch never reads all that wait when it ends.
    batches = [batch for batch in driver.rows("batches") if batch["batch_id"] > last]
    for before, batch in pairwise(batches):
        waiting = {part["partition"]: part["latest_offset"] for part in before["sources"]}
        if all(part["until_offset"] >= waiting[part["partition"]] for part in batch["sources"]):
            return int(batch["finished_at"])
    return None
