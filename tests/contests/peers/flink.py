"""Flink's DataStream API: a value per key on the heap, with checkpoints."""

from __future__ import annotations

from typing import ClassVar

from contests.peers.peer import JAVA, WORK, KafkaPeer, Place, Promise, jar_versions

JARS = WORK / "java" / "flink" / "jars"
OPENS = ("java.base/java.lang", "java.base/java.util", "java.base/java.time")
"""Packages that Flink's own scripts open to it."""


class FlinkExactlyOnce(KafkaPeer):
    """A transaction of the sink for each checkpoint."""

    name = "flink_exactly_once"
    title = "Flink DataStream, heap state, exactly once"
    promise = Promise.EXACTLY_ONCE
    settings: ClassVar = {
        "parallelism": "2, in one process",
        "state": "heap (default), checkpoints to a folder every 10 s",
        "sink": "transactional",
        "heap": "1 GB",
    }

    def versions(self) -> dict[str, str]:
        return jar_versions(JARS, "flink-streaming-java", "flink-connector-kafka", "kafka-clients", "jackson-databind")

    def command(self, place: Place) -> list[str]:
        checkpoints = place.home / "checkpoints"
        arguments = [place.address, place.input, place.output, place.group, checkpoints.as_uri()]
        complete = sorted(checkpoints.glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime_ns)
        restored = [file.parent.as_uri() for file in complete[-1:]]
        opens = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENS]
        path = f"{JARS.parent / 'classes'}:{JARS}/*"
        guarantee = self.promise.value.replace(" ", "_")
        return [*JAVA, *opens, "-cp", path, "EmitOnChange", *arguments, guarantee, *restored]


class FlinkAtLeastOnce(FlinkExactlyOnce):
    """The same without transactions."""

    name = "flink_at_least_once"
    title = "Flink DataStream, heap state, at least once"
    promise = Promise.AT_LEAST_ONCE
    settings: ClassVar = FlinkExactlyOnce.settings | {"sink": "without transactions"}
