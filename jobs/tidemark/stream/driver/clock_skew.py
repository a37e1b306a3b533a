"""Estimates how far a host's clock is from the brokers' clock, by records that a broker stamps when it gets them."""

from __future__ import annotations

import logging
import math
import threading
import time

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidemark.clock import Clock
from tidemark.model.project.connections import HEARTBEATS, Cluster
from tidemark.model.project.kafka_security import ClientSettings
from tidemark.model.tables.catalog import BROKERS
from tidemark.semantics.skew import Skew, TimedHeartbeat, minimum_skew
from tidemark.stream.driver.heartbeats import ClockOffset, ClockOffsets

log = logging.getLogger(__name__)

TOPIC = HEARTBEATS
"""A topic with one partition. Nobody reads its records, which name their sender: only the broker's stamp counts."""
TOPIC_CONFIG = {"message.timestamp.type": "LogAppendTime", "retention.ms": "3600000"}
EVERY_S = 15.0
SAMPLES = 5
"""Records of an estimate. Each is sent when the one before was acknowledged, and the fastest decides."""
TIMEOUT_S = 5.0
KEPT_MS = 300_000
"""An estimate without a newer one is used for so long.

Clocks drift apart by about 0.05 ms a second.
"""
_MAY_EXIST = frozenset({KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.TOPIC_AUTHORIZATION_FAILED})
"""Errors of a creation after which the topic may exist.

Brokers answer to a client without the right Create by the second one, whether the topic exists or not.
"""
ROUNDING_MS = 1
"""Host and broker give times in whole milliseconds."""


class ClockSkew:
    """Estimates the skew of a *host*'s *clock* every EVERY_S seconds.

    Purpose: instants (epoch ms) of drivers on several hosts become comparable.

    How it works: a separate thread sends records to TOPIC at the brokers of *cluster*. The broker's stamp lies between
    a record's sending and its acknowledgement. Each estimate is added to *offsets*, for the next heartbeat.

    No failure and no delay of the thread reaches a batch. Without a cluster, a broker or permission for the topic there
    is no estimate.

    Known limitation: all brokers are assumed to have one clock, and the fastest record to take as long to the broker as
    its answer takes back.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        offsets: ClockOffsets,
        topology: str,
        sub_topology: str,
        host: str,
        clock: Clock,
    ) -> None:
        # Level 0 is silent: the stream's own clients log that there is no broker.
        self._client: ClientSettings = {**(cluster.client if cluster else {}), "log_level": 0}
        self._is_wanted = cluster is not None
        self._offsets = offsets
        self._key, self._host, self._clock = f"{topology}/{sub_topology}", host, clock
        self._newest: tuple[int, Skew] | None = None
        self._is_heard = True
        self._unsent: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the thread, if there is a cluster."""
        if self._is_wanted:
            self._thread.start()

    def end(self) -> None:
        """Ends the thread."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)

    def newest(self) -> Skew | None:
        """Returns the newest estimate, or None if it is older than KEPT_MS or there is none."""
        newest = self._newest
        return newest[1] if newest and abs(self._clock() - newest[0]) <= KEPT_MS else None

    def estimate(self, producer: Producer) -> Skew | None:
        """Makes an estimate with SAMPLES records, or returns None if the broker stamped none of them.

        Raises:
            KafkaException: the producer failed.
        """
        answered = [beat for _ in range(SAMPLES) if (beat := self._beat(producer)) is not None]
        skew = minimum_skew(answered, samples=SAMPLES)
        if skew is None or skew.error_ms is None:
            return None
        skew = Skew(offset_ms=skew.offset_ms, error_ms=skew.error_ms + ROUNDING_MS)
        at_ms = self._clock()
        self._newest = (at_ms, skew)
        self._offsets.add(
            ClockOffset(
                host=self._host,
                estimated_at_ms=at_ms,
                skew=skew,
                samples=len(answered),
                reference=BROKERS,
            )
        )
        return skew

    def producer(self) -> Producer:
        """Creates the topic if it is missing, and a producer for `estimate`.

        A cluster that denies the right Create may have the topic all the same, so that is no error.

        Raises:
            KafkaException: the topic cannot be created.
        """
        # -1 is the broker's default number of replicas.
        wanted = [NewTopic(TOPIC, 1, -1, config=TOPIC_CONFIG)]
        # The client needs a name, because its futures complete only while it exists.
        client = AdminClient(self._client)
        (created,) = client.create_topics(wanted, request_timeout=TIMEOUT_S).values()
        try:
            created.result()
        except KafkaException as refusal:
            if refusal.args[0].code() not in _MAY_EXIST:
                raise
        # acks 1: waiting for replicas would add to the round trip, and so to the error.
        return Producer({**self._client, "acks": 1, "linger.ms": 0, "message.timeout.ms": round(TIMEOUT_S * 1_000)})

    def _run(self) -> None:
        producer: Producer | None = None
        while not self._over.is_set():
            why = None
            try:
                producer = producer or self.producer()
                if self.estimate(producer) is None:
                    unstamped = (
                        f"no broker answered in time, or topic {TOPIC} lacks message.timestamp.type LogAppendTime"
                    )
                    why = f"topic {TOPIC}: {self._unsent}" if self._unsent else unstamped
            except KafkaException as error:
                why = f"topic {TOPIC}: {error.args[0].str()}"
            except Exception as error:
                why = str(error)
            if why is not None and self._is_heard:  # repeated failures are logged once
                log.warning("cannot estimate the clock offset of %s from the brokers: %s", self._host, why)
            self._is_heard = why is None
            self._over.wait(EVERY_S)

    def _beat(self, producer: Producer) -> TimedHeartbeat | None:
        """Sends a record and waits for its answer; returns None if the broker did not stamp the record."""
        stamps: list[tuple[int, int]] = []
        self._unsent = None

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._unsent = error.str()
            else:
                stamps.append(message.timestamp())

        # The round trip is by a monotonic clock: the wall clock may be set meanwhile.
        sent_ms, began_s = self._clock(), time.monotonic()
        producer.produce(TOPIC, self._host, self._key, on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        round_trip_ms = math.ceil((time.monotonic() - began_s) * 1_000)
        # A topic that existed before may stamp by the producer's clock, which says nothing about the broker's.
        kind, received_ms = stamps[0] if stamps else (None, 0)
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            return None
        return TimedHeartbeat(sent_ms=sent_ms, received_ms=received_ms, round_trip_ms=round_trip_ms)
