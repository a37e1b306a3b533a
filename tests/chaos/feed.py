"""Feeds endless numbered records into Kafka, the same for a seed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from random import Random

from confluent_kafka import KafkaError, Message, Producer
from streaming.sending import DELIVERED_WITHIN_S, WriterPosition

TOPIC = "events"
PARTITIONS = 3
PLAYERS = [f"player {number}" for number in range(24)]
TEAMS = ["blue", "green", "red"]
PER_SECOND = 150
START_MS = 1_700_000_000_000
STEP_MS = 20  # of record time from one record to the next
HOUR_MS = 3_600_000


def records(seed: int) -> Iterator[WriterPosition]:
    """Generates the feed, in which about half of the updates repeat.

    Some records are late, unusable, or delete a player.
    """
    chance = Random(seed)
    now = {player: (chance.choice(TEAMS), chance.randrange(10)) for player in PLAYERS}
    for n in _count():
        player = chance.choice(PLAYERS)
        if chance.random() < 0.5:
            team, score = now[player]
            now[player] = (chance.choice(TEAMS) if chance.random() < 0.1 else team, (score + chance.randrange(10)) % 10)
        # Within the bound some come in another order than they happened in: not all that is unchanged is newer.
        happened_at_ms = START_MS + n * STEP_MS - (chance.randrange(900) if chance.random() < 0.2 else 0)
        yield _record(n, player, now[player], happened_at_ms, chance)


def _record(n: int, player: str, now: tuple[str, int], happened_at_ms: int, chance: Random) -> WriterPosition:
    partition, key = PLAYERS.index(player) % PARTITIONS, player.encode()
    fields = {"n": n, "team": now[0], "score": now[1], "event_time": happened_at_ms}
    value: bytes | None = json.dumps(fields).encode()
    match chance.choices(("sound", "late", "no score", "deletes", "no key", "cut off"), (86, 4, 3, 4, 1, 2))[0]:
        case "late":
            happened_at_ms -= HOUR_MS
            value = json.dumps({**fields, "event_time": happened_at_ms}).encode()
        case "no score":
            value = json.dumps({**fields, "score": None}).encode()
        case "deletes":
            value = None
        case "no key":
            key = value = None  # it deletes no player
        case "cut off":
            value = (value or b"")[:20]
    return WriterPosition(happened_at_ms, TOPIC, partition, key, value, happened_at_ms)


def _count() -> Iterator[int]:
    n = 0
    while True:
        yield n
        n += 1


class Flow:
    """Sends PER_SECOND records of *seed*'s feed during the `with` block.

    `acknowledged` has the records that Kafka acknowledged, without their places: for a record that a killed broker
    received twice, Kafka names only one place. The block ends when all sent records are acknowledged, however long the
    broker was away.
    """

    def __init__(self, seed: int, address: str) -> None:
        self._feed = records(seed)
        self._producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0})
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._refused: list[str] = []
        self.acknowledged: list[WriterPosition] = []

    def __enter__(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()
        unsent = self._producer.flush(DELIVERED_WITHIN_S)
        assert (unsent, self._refused) == (0, []), f"Kafka took all but {unsent} records, and refused {self._refused}"

    def _run(self) -> None:
        while not self._over.wait(1 / PER_SECOND):
            self._send(next(self._feed))
            self._producer.poll(0)

    def _send(self, sent: WriterPosition) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acknowledged.append(sent)
            else:
                self._refused.append(error.str())

        self._producer.produce(
            sent.topic, sent.value, sent.key, sent.partition, timestamp=sent.timestamp_ms, on_delivery=delivered
        )
