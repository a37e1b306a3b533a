"""A restart far behind is named `catching_up`, with its end.

The played queue of tests/unit/test_catching_up.py has 20 seeds; this is a real driver and broker.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from streaming.drivers import OnlyDriver
from streaming.sending import NOON_MS, passing

from tidemark.embedded import broker as embedded

PARTITIONS = 3
WARM, BATCHES = 200, (40, 60)
"""Records before the stop; fewest and most batches that catch up."""


def send_many(address: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n, "at": NOON_MS + n}), "k", n % PARTITIONS)
    assert producer.flush(120) == 0


@pytest.mark.long  # a minute of records behind for each seed, and two starts of a driver
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_restart_behind_is_named_and_its_end_estimated(
    broker: str, tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    random, topic = Random(seed), f"behind_{seed}"
    behind, share = random.randint(10_000, 500_000), random.uniform(0.1, 0.5)
    per_s = behind // random.randint(*BATCHES)
    toml = passing("behind", topic).replace(f'topic = "{topic}"', f'topic = "{topic}"\nmax_records = {per_s}')
    embedded.create_topics(broker, {topic: PARTITIONS})
    with OnlyDriver(tmp_path, toml, broker) as driver:
        send_many(broker, topic, range(WARM))
        driver.read_everything(broker, {"events": topic})
        assert driver.drain() == 0
        last = driver.rows("batches")[-1]["batch_id"]
    send_many(broker, topic, range(WARM, WARM + behind))

    is_over = threading.Event()

    def keep_sending() -> None:
        n = WARM + behind
        while not is_over.wait(1):
            send_many(broker, topic, range(n, n := n + round(share * per_s)))

    sender = threading.Thread(target=keep_sending)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        sender.start()
        try:
            driver.wait(lambda: ended_ms(driver, last) is not None, "the end of catching up", 400)
        finally:
            is_over.set()
            sender.join()
        end_ms = ended_ms(driver, last)
        beats = [beat for beat in driver.rows("heartbeats") if beat["batch_id"] > last and beat["state"] == "running"]
    assert end_ms is not None
    assert any(beat["eta_at"] is not None for beat in beats[:2])
    half_ms = (beats[0]["at"] + end_ms) / 2
    beat = min((beat for beat in beats if beat["eta_at"] is not None), key=lambda beat: abs(beat["at"] - half_ms))
    error = abs(beat["eta_at"] - end_ms) / (end_ms - beat["at"])
    measured = {"behind": behind, "lasted_ms": end_ms - beats[0]["at"], "at_half_time": error}
    for name, value in measured.items():
        record_property(name, value)
    assert error <= 0.2


def ended_ms(driver: OnlyDriver, last: int) -> int | None:
    """Returns when a batch had read what waited after the one before."""
    # Records come all the time, so a batch never reads all that wait when it ends.
    batches = [batch for batch in driver.rows("batches") if batch["batch_id"] > last]
    for before, batch in pairwise(batches):
        waiting = {part["partition"]: part["latest_offset"] for part in before["sources"]}
        if all(part["until_offset"] >= waiting[part["partition"]] for part in batch["sources"]):
            return int(batch["finished_at"])
    return None
