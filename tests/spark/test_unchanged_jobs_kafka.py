"""Jobs name the faults of Kafka, and go on after them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from support.unchanged_jobs import JOBS, Shop, as_rows, beside, wait_for
from tidemark.local import broker as embedded

pytestmark = pytest.mark.long  # a broker is stopped and started; test_api_kafka.py has the short cases
IMPATIENT = {"kafka.default.api.timeout.ms": "2000", "kafka.request.timeout.ms": "1000", "fetchOffset.numRetries": "1"}


class Market:
    """A shop with a broker, whose job copies a topic."""

    def __init__(self, home: Path) -> None:
        self.shop, self.home = Shop(home), home / "broker"
        self.address = embedded.start(self.home).address

    def create(self, topic: str) -> None:
        embedded.create_topics(self.address, {topic: 1})

    def send(self, topic: str, *keys: int) -> None:
        """Sends an order for each of *keys*."""
        producer = Producer({"bootstrap.servers": self.address})
        for order in as_rows(*((key, 0, 5) for key in keys)):
            producer.produce(topic, json.dumps(order))
        assert producer.flush(30) == 0

    def copied(self) -> list[int]:
        """Returns the orders in the table."""
        is_table = (self.shop.home / "table" / "_delta_log" / "00000000000000000000.json").exists()
        return [key for (key,) in self.shop.rows("table", "id")] if is_table else []

    def subscribe(self, topic: str, beside_it: Callable[[], object], **options: str) -> int:
        """Runs the job until it ends, and *beside_it*; returns its exit status."""
        places = [str(self.shop.home / place) for place in ("table", "checkpoint")]
        with beside(beside_it, or_else=lambda: self.shop.drain("subscribe")):
            return self.shop.start(
                JOBS / "subscribe.py", self.address, topic, *places, json.dumps({"forever": "yes", **options})
            )

    def drain_after(self, *keys: int) -> None:
        """Has the job end when these orders are in the table."""
        wait_for(lambda: self.copied() == [*keys])
        self.shop.drain("subscribe")


@pytest.fixture
def market(spark: SparkSession, tmp_path: Path) -> Iterator[Market]:
    market = Market(tmp_path)
    yield market
    embedded.stop(market.home)


def test_a_broker_that_comes_back_soon_is_no_fault(market: Market) -> None:
    market.create("orders")
    market.send("orders", 1)

    def restart() -> None:
        wait_for(lambda: market.copied() == [1])
        embedded.stop(market.home)
        embedded.start(market.home)
        market.send("orders", 2)
        market.drain_after(1, 2)

    assert market.subscribe("orders", restart) == 0


def test_a_broker_that_stays_away_is_named(market: Market) -> None:
    market.create("orders")
    market.send("orders", 1)

    def stop() -> None:
        wait_for(lambda: market.copied() == [1])
        embedded.stop(market.home)

    assert market.subscribe("orders", stop, **IMPATIENT) == 1
    assert "TimeoutException" in market.shop.reason()
    embedded.start(market.home)
    market.send("orders", 2)
    assert market.subscribe("orders", lambda: market.drain_after(1, 2)) == 0


def test_a_deleted_topic_is_named(market: Market) -> None:
    market.create("orders")
    market.send("orders", 1)

    def delete() -> None:
        wait_for(lambda: market.copied() == [1])
        admin = AdminClient({"bootstrap.servers": market.address})
        admin.delete_topics(["orders"])["orders"].result()

    assert market.subscribe("orders", delete, **IMPATIENT) == 1
    assert "(it reads orders)" in market.shop.reason()
    market.create("orders")
    market.send("orders", 2)
    # With the old checkpoint Spark goes on at the offset 1, and leaves out the first record of the new topic.
    (market.shop.home / "checkpoint").rename(market.shop.home / "old_checkpoint")
    assert market.subscribe("orders", lambda: market.drain_after(1, 2), **IMPATIENT) == 0
    assert "new_checkpoint" in market.shop.causes()


def test_the_example_of_spark_for_kafka_runs_unchanged(market: Market) -> None:
    market.create("lines")
    example = "structured_kafka_wordcount"

    # It reads from the end of the topic, so records come until it has read one.
    def send() -> None:
        wait_for(lambda: market.send("lines", 1) or market.shop.has_read(example))

    with beside(send, or_else=lambda: market.shop.drain(example)):
        assert market.shop.run_example(example, market.address, "subscribe", "lines") >= 1
