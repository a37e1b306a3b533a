"""A real driver on a full disk waits, reports it and continues.

The disk has Spark's checkpoint and all else.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from streaming.drivers import OnlyDriver
from streaming.sending import passing, send_numbers

from support.small_disk import SmallDisk, small_disk
from tidemark.clock import wall_clock_ms
from tidemark.local import broker as embedded
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import parse
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import why

TOPIC = "for_a_full_disk"
TOML = passing("full", TOPIC)
TOPOLOGY = parse(tomllib.loads(TOML), file="full.toml")
CANNOT = r"cannot write: No space left on device, since \S+Z"
COULD_NOT = r"could not write from \S+Z until \S+Z: No space left on device"
SLOW = ("--slow", "kept=4000")
"""Makes each batch long enough to see the heartbeat of one that waited."""


def has_reason(driver: OnlyDriver, pattern: str) -> bool:
    beat = driver.beat()
    return beat is not None and bool(re.fullmatch(pattern, beat.reason or ""))


def blamed(disk: SmallDisk) -> WhyFinding:
    """Returns the first finding of `tidemark why` now."""
    return why(TOPOLOGY, Layout(disk.home), at_ms=wall_clock_ms())[0]


def test_a_driver_waits_for_a_full_disk_and_loses_no_record(tmp_path: Path, broker: str) -> None:
    embedded.create_topics(broker, {TOPIC: 1})
    send_numbers(broker, TOPIC, 0, 1)
    with small_disk(tmp_path / "warehouse", megabytes=16) as disk:
        with OnlyDriver(tmp_path, TOML, broker, *SLOW) as driver:
            driver.wait_for("kept", 2)
            disk.fill()
            send_numbers(broker, TOPIC, 2, 3)
            driver.wait(lambda: has_reason(driver, CANNOT), "a driver that waits")
            assert blamed(disk).cause == "cannot_write"
            disk.free()
            driver.wait(lambda: has_reason(driver, COULD_NOT), "a driver that carries out what waited")
            # The reason may be gone a moment later, so a finding of the batch that was done is none of the disk.
            found = blamed(disk)
            assert (found.cause, "has not yet done what waited" in found.seen) == ("cannot_write", True)
            driver.wait_for("kept", 4)
            driver.wait(lambda: has_reason(driver, ""), "a driver that does not wait")
            assert blamed(disk).cause != "cannot_write"
            disk.fill()
            send_numbers(broker, TOPIC, 4)
            driver.wait(lambda: has_reason(driver, CANNOT), "a driver that waits again")
        killed = blamed(disk)
        disk.free()
        with OnlyDriver(tmp_path, TOML, broker, *SLOW) as driver:
            pattern = f"a driver before this one {COULD_NOT}"
            driver.wait(lambda: has_reason(driver, pattern), "the next driver, which tells of the one before")
            assert blamed(disk).cause == "cannot_write"
            kept = driver.wait_for("kept", 5)
            driver.wait(lambda: has_reason(driver, ""), "a driver that has done what waited")
            assert driver.drain() == 0
        assert findings(evidence(Stream(TOPOLOGY, TOPOLOGY.sub_topology("all"), Layout(disk.home)))) == []
    assert killed.cause == "cannot_write"
    assert [row["n"] for row in kept] == [0, 1, 2, 3, 4]
