"""Kafka Streams: a processor with a store in RocksDB."""

from __future__ import annotations

from typing import ClassVar

from contests.peers.peer import JAVA, WORK, KafkaPeer, Place, Promise, jar_versions

JARS = WORK / "java" / "kafka_streams" / "jars"


class KafkaStreams(KafkaPeer):
    """Transactions of offsets, changelog and output."""

    name = "kafka_streams"
    title = "Kafka Streams, RocksDB, exactly once v2"
    promise = Promise.EXACTLY_ONCE
    settings: ClassVar = {
        "processing.guarantee": "exactly_once_v2",
        "num.stream.threads": "2",
        "store": "RocksDB with a changelog topic, no cache",
        "commit.interval.ms": "100 (default)",
        "heap": "1 GB",
    }

    def versions(self) -> dict[str, str]:
        return jar_versions(JARS, "kafka-streams", "rocksdbjni", "jackson-databind")

    def command(self, place: Place) -> list[str]:
        path = f"{JARS.parent / 'classes'}:{JARS}/*"
        arguments = [place.address, place.input, place.output, place.group, str(place.home / "state")]
        return [*JAVA, "-cp", path, "EmitOnChange", *arguments, self.settings["processing.guarantee"]]
