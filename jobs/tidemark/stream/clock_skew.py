"""How far a host's clock is from the brokers' clock, by records that a broker stamps when it takes them."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidemark.clock import Clock
from tidemark.semantics.skew import Heartbeat, Skew, minimum_skew
from tidemark.spec.connections import Cluster, Settings
from tidemark.spec.tables import CLOCK_SKEW
from tidemark.stream.heartbeats import History

log = logging.getLogger(__name__)

TOPIC = "tidemark_heartbeats"
"""One partition; its records say who sent them, and are read by nobody: what counts is the stamp."""
TOPIC_CONFIG = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}
EVERY_S = 15.0
SAMPLES = 5
"""Records of one estimate, each sent when the one before was acknowledged; the fastest decides."""
TIMEOUT_S = 5.0
KEPT_MS = 300_000
"""An estimate is used for so long when there is no newer one: clocks drift, by some 0.05 ms a second."""
ROUNDING_MS = 1
"""Host and broker tell whole milliseconds."""


class ClockSkew:
    """The skew of a *host*'s *clock* (epoch ms) against the brokers of *cluster*, estimated every EVERY_S seconds.

    Purpose: instants of drivers on several hosts become comparable.
    How it works: a thread of its own sends records to TOPIC. The broker's stamp lies between a record's sending and
    its acknowledgement. Each estimate is a row of `clock_skew` in *home*, the folder of the driver's tables.
    What it does not do: fail, or hold up a batch. Without a cluster or a broker, or without the right to the topic,
    there is no estimate.
    Known limitation: brokers are taken to have one clock; the record's way there and back to take equally long at best.
    """

    def __init__(
        self, cluster: Cluster | None, home: Path, topology: str, sub_topology: str, host: str, clock: Clock
    ) -> None:
        # Level 0: that there is no broker is told by the stream's own clients.
        self._client: Settings = {**(cluster.client if cluster else {}), "log_level": 0}
        self._is_wanted = cluster is not None
        self._history = History(home, CLOCK_SKEW, topology=topology, sub_topology=sub_topology)
        self._key, self._host, self._clock = f"{topology}/{sub_topology}", host, clock
        self._newest: tuple[int, Skew] | None = None
        self._is_heard = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Estimate from now on, if there is a cluster."""
        if self._is_wanted:
            self._thread.start()

    def end(self) -> None:
        """Estimate no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def newest(self) -> Skew | None:
        """The newest estimate; None before the first, and when that is too old."""
        newest = self._newest
        return newest[1] if newest and abs(self._clock() - newest[0]) <= KEPT_MS else None

    def estimate(self, producer: Producer) -> Skew | None:
        """An estimate by SAMPLES records; None when the broker stamped none. Raises KafkaException."""
        answered = [beat for _ in range(SAMPLES) if (beat := self._beat(producer)) is not None]
        skew = minimum_skew(answered, samples=SAMPLES)
        if skew is None or skew.error_ms is None:
            return None
        skew = Skew(offset_ms=skew.offset_ms, error_ms=skew.error_ms + ROUNDING_MS)
        at_ms = self._clock()
        self._newest = (at_ms, skew)
        row = {"host": self._host, "at": at_ms, "samples": len(answered)}
        self._history.add({**row, "offset_ms": skew.offset_ms, "error_ms": skew.error_ms})
        return skew

    def producer(self) -> Producer:
        """A producer for `estimate`, once there is the topic. Raises KafkaException."""
        wanted = [NewTopic(TOPIC, 1, -1, config=TOPIC_CONFIG)]
        client = AdminClient(self._client)  # named, since it answers only as long as it lives
        (created,) = client.create_topics(wanted, request_timeout=TIMEOUT_S).values()
        try:
            created.result()
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return Producer({**self._client, "acks": 1, "linger.ms": 0, "message.timeout.ms": round(TIMEOUT_S * 1_000)})

    def _run(self) -> None:
        producer: Producer | None = None
        while not self._over.is_set():
            why = None
            try:
                producer = producer or self.producer()
                if self.estimate(producer) is None:
                    why = f"no broker answered in time, or topic {TOPIC} lacks message.timestamp.type LogAppendTime"
            except Exception as error:
                why = str(error)
            if why is not None and self._is_heard:  # a row of failures is told once
                log.warning("how far the clock of %s is from the brokers' is not known: %s", self._host, why)
            self._is_heard = why is None
            self._over.wait(EVERY_S)

    def _beat(self, producer: Producer) -> Heartbeat | None:
        """One record and its answer; None when it was not stamped."""
        stamps: list[tuple[int, int]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                stamps.append(message.timestamp())

        sent_ms, began_s = self._clock(), time.monotonic()
        producer.produce(TOPIC, self._host, self._key, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        round_trip_ms = math.ceil((time.monotonic() - began_s) * 1_000)
        kind, received_ms = stamps[0] if stamps else (None, 0)
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            return None
        return Heartbeat(sent_ms=sent_ms, received_ms=received_ms, round_trip_ms=round_trip_ms)
