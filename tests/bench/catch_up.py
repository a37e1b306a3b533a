"""Measures a backlog of five million flights records with both drivers.

`RECORDS=300_000 make bench PARTS=catch_up` has so many instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from bench.ratios import CORES, Figure
from confluent_kafka import Producer
from streaming.drivers import PROJECT, Driver, rows_of

from tidemark.demo.feed_record import FLIGHT_EVENTS, PARTITIONS, WEATHER, ReplayClock, encode
from tidemark.demo.flights import midnight_ms
from tidemark.demo.generate import FeedSettings, feed
from tidemark.demo.nycflights import load
from tidemark.local import broker
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan

RECORDS = int(os.environ.get("RECORDS", "5_000_000"))
FIRST, UNTIL = date(2013, 6, 1), date(2013, 7, 1)
SPEED = 1_440
PATIENCE_S = 1_800


def figures(_: int) -> Iterator[Figure]:
    """Records per second and core, of one run: it is long."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        stack.callback(broker.stop, home / "broker")
        address = broker.start(home / "broker").address
        sent = send(address, RECORDS)
        (home / "flights.toml").write_text((PROJECT / "jobs/topologies/flights.toml").read_text())
        drivers = [Driver(sub, home, address, topology="flights") for sub in ("status", "carriers")]
        for driver in drivers:
            stack.callback(driver.end)
        status, carriers = drivers
        status.read_everything(address, {topic: topic for topic in PARTITIONS}, patience_s=PATIENCE_S)
        batches = rows_of(home / "warehouse", "flights", "status", "batches")
        hop = scan(Layout(home / "warehouse").hop("flights", "status", "by_carrier"))
        last = hop.select(pl.max("batch_id")).collect().item()
        carriers.wait(
            lambda: carriers.offsets().get("by_carrier_source/0", 0) > (-1 if last is None else last),
            "the end of the hop",
            PATIENCE_S,
        )
        ended = rows_of(home / "warehouse", "flights", "carriers", "batches")
    took_s = (max(row["finished_at"] for row in ended) - batches[0]["started_at"]) / 1_000
    yield Figure(f"catch-up, {sent:,} records of flights", [sent / took_s / CORES], unit="records/s and core")


def send(address: str, records: int) -> int:
    """Fills the broker with *records* of June's flights; returns their number.

    Each flight comes many times, under other numbers.
    """
    data = load(FIRST, UNTIL)
    start_ms = midnight_ms(FIRST)
    once = feed(data.flights, data.weather, range_start_ms=start_ms, settings=FeedSettings(repeat_share=0.2))
    timeline = ReplayClock(started_at_ms=0, range_start_ms=start_ms, speed=SPEED)
    length_ms = max(map(timeline.delivery_ms, once))
    timeline = ReplayClock(started_at_ms=time.time_ns() // 1_000_000 - length_ms, range_start_ms=start_ms, speed=SPEED)
    copies = records // sum(record.topic == FLIGHT_EVENTS for record in once)
    broker.create_topics(address, {**PARTITIONS, "carrier_delays": 1})
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    sent = 0
    for record in sorted(once, key=timeline.delivery_ms):
        key, value = encode(record, timeline.event_time_ms(record))
        flight = b'"flight": "' + (key or b"")
        for copy in range(1 if record.topic == WEATHER else copies):
            other = b"-%d" % copy
            producer.produce(
                record.topic, value.replace(flight, flight + other), (key or b"") + other, record.partition
            )
            sent += 1
        producer.poll(0)
        while len(producer) > 500_000:
            producer.poll(0.1)
    assert producer.flush(PATIENCE_S) == 0
    return sent
