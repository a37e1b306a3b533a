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
from streaming.drivers import OnlyDriver, reads_of
from streaming.sending import NOON_MS, passing

from tidemark.local import broker as embedded
from tidemark.semantics.catching_up import READS

TOPIC, PARTITIONS = "behind", 3
PER_BATCH, COME, BATCHES = 1_000, 200, 72
"""Records that a batch reads, that come meanwhile, and batches that wait."""


def send(address: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for n in numbers:
        producer.produce(TOPIC, json.dumps({"n": n, "at": NOON_MS + n}), "k", n % PARTITIONS)
    assert producer.flush(120) == 0


@pytest.mark.long  # some ninety batches of a real driver, so that several heartbeats tell of the first half
def test_a_killed_driver_estimates_when_it_has_caught_up(broker: str, tmp_path: Path) -> None:
    toml = passing("behind", TOPIC).replace(f'topic = "{TOPIC}"', f'topic = "{TOPIC}"\nmax_records = {PER_BATCH}')
    embedded.create_topics(broker, {TOPIC: PARTITIONS})
    is_over, sent = threading.Event(), PER_BATCH * BATCHES
    send(broker, range(sent))
    with OnlyDriver(tmp_path, toml, broker) as driver:
        driver.wait_for("kept", 2 * PER_BATCH)
        driver.kill_in_the_middle_of_a_batch()
        last = driver.rows("batches")[-1]["batch_id"]

    def keep_sending() -> None:
        """Sends with each batch, so that a slow machine delays both alike."""
        done = 0
        while not is_over.wait(0.2):
            beat = driver.control.heartbeat()
            batches = beat.batches if beat and beat.epoch == 2 else 0
            send(broker, range(sent + COME * done, sent + COME * batches))
            done = max(done, batches)

    sender = threading.Thread(target=keep_sending)
    with OnlyDriver(tmp_path, toml, broker) as driver:
        sender.start()
        try:
            driver.wait(lambda: last_behind(driver, last) is not None, "the end of catching up", 600)
        finally:
            is_over.set()
            sender.join()
        end = last_behind(driver, last)
        finished_ms = {row["batch_id"]: row["finished_at"] for row in driver.rows("batches")}
        beats = [beat for beat in driver.rows("heartbeats") if beat["epoch"] == 2 and beat["eta_at"] is not None]
    assert end is not None
    # The last estimate of the first half. Its clock is the mean length of the batches from which it was made.
    beat = [beat for beat in beats if beat["batch_id"] <= (last + end) / 2][-1]
    now = beat["batch_id"]
    first = max(last + 1, now - READS + 1)
    batch_ms = (finished_ms[now] - finished_ms[first]) / (now - first)
    assert (beat["eta_at"] - finished_ms[now]) / batch_ms == pytest.approx(end - now, rel=0.2)


def last_behind(driver: OnlyDriver, last: int) -> int | None:
    """Returns the batch after *last* that read what waited before it."""
    # Records come all the time, so a batch never reads all that wait when it ends.
    reads = reads_of(driver.rows("partition_batches"))
    for before, batch_id in pairwise(number for number in reads if number > last):
        waiting = {part.partition: part.latest_offset for part in reads[before]}
        if all(part.until_offset >= (waiting[part.partition] or 0) for part in reads[batch_id]):
            return batch_id
    return None
