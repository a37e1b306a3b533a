"""A replay through a real broker: what a consumer reads is the feed, in the order and at the instants it was given."""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, TopicPartition

from tidemark import publish
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.feed_record import FeedRecord, Kind

PARTITIONS = [("flight_events", 0), ("flight_events", 1), ("flight_events", 2), ("weather", 0)]
AIRPORTS = ["EWR", "JFK", "LGA"]
ONE_DAY = ["--from", "2013-06-27", "--to", "2013-06-28"]
Ends = dict[tuple[str, int], int]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def options(broker: str, *arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    publish.add_arguments(parser)
    return parser.parse_args(["--bootstrap", broker, *ONE_DAY, *arguments])


def replay(broker: str, *arguments: str, said: list[str] | None = None) -> dict[str, object]:
    report = (said if said is not None else []).append
    return publish.run(options(broker, *arguments), clock_ms=now_ms, report=report)


@pytest.fixture
def consumer(broker: str) -> Iterator[Consumer]:
    ...


def ends(consumer: Consumer) -> Ends:
    """Where each partition ends now."""
    publish.create_topics
    return {place: consumer.get_watermark_offsets(TopicPartition(*place))[1] for place in PARTITIONS}
