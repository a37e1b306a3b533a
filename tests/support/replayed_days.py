"""Replays two days of three partitions.

The process can be killed at any instant. The driver is a `Play` without Spark. It plans each batch in a file before it
runs it, as Spark does, so that the next driver runs the same batch again. Partition 1 is slow for some hours, partition
2 is silent for some, and records of hours that a consumer has already read are late. Decision times are on the clock of
the replay: half an hour a batch.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.play import Play
from support.topologies import sink, source, topology_of

TOML = topology_of(
    events=source("id string, v int", idle_after="100 min"),
    board=sink("events", table="board", complete={"every": "1 h"}),
)
MIDNIGHT, HOUR_MS, MINUTE_MS = 1_372_291_200_000, 3_600_000, 60_000
"""2013-06-27 00:00 UTC."""
HOURS, LATE = 48, 12
BATCH_MS, BOUND_MS, IDLE_AFTER_MS = 30 * MINUTE_MS, 1_000, 100 * MINUTE_MS
SLOW, SLOW_HOURS, SLOW_BY_MS = 1, range(20, 26), 50 * MINUTE_MS
SILENT, SILENT_HOURS = 2, range(10, 16)
PACE_S = 3.0
"""Seconds from one batch to the next."""

Record = tuple[int, int, int]
"""Partition, time (epoch ms) and value."""
Plan = dict[str, Any]
"""Content of a batch: `records`, `late` and `at_s`.

`late` has the hours with a late record, and `at_s` the wall clock when it was planned (epoch s).
"""


def key(hour: int) -> str:
    """Returns the start of *hour* as a partition key."""
    return f"2013-06-{27 + hour // 24}T{hour % 24:02}:00:00+00:00"


def decided_ms(batch: int) -> int:
    """Returns the decision time of *batch*."""
    return MIDNIGHT + (batch + 1) * BATCH_MS


def in_time() -> Iterator[tuple[int, Record]]:
    """Yields each record in time after its arrival (epoch ms)."""
    for minute in range(3, (HOURS * 60) + 30, 10):
        at_ms = MIDNIGHT + minute * MINUTE_MS
        for partition in range(3):
            if partition != SILENT or minute // 60 not in SILENT_HOURS:
                arrives_ms = at_ms
                if partition == SLOW and minute // 60 in SLOW_HOURS:
                    arrives_ms += SLOW_BY_MS
                elif partition == SLOW and minute // 60 >= SLOW_HOURS.stop:
                    # Records of a partition keep their order.
                    arrives_ms = max(at_ms, MIDNIGHT + SLOW_HOURS.stop * HOUR_MS + SLOW_BY_MS)
                yield arrives_ms, (partition, at_ms, minute % 7)


LAST = HOURS * 2
"""The last batch with records in time: they end the last hour."""


@dataclass
class Days:
    """The replay in *home*."""

    home: Path
    seed: int = 0

    @property
    def warehouse(self) -> Path:
        """The folder of the tables."""
        return self.home / "warehouse"

    def read(self, hour: int) -> Path:
        """Returns the file that the consumer writes when it has read *hour*."""
        return self.home / "read" / f"{key(hour)}.json"

    def late(self) -> list[int]:
        """Returns the hours that get a late record."""
        return sorted(random.Random(self.seed).sample(range(HOURS - 1), LATE))

    def plans(self) -> list[Plan]:
        """Returns the plans so far."""
        files = sorted((self.home / "plans").glob("*.json"), key=lambda path: int(path.stem))
        return [json.loads(path.read_text()) for path in files]

    def is_over(self) -> bool:
        """Returns True if all records were read, the late ones too."""
        return (self.home / "over").exists()

    def drive(self) -> None:
        """Runs batches from the first that is not done."""
        for folder in ("plans", "done", "read"):
            (self.home / folder).mkdir(parents=True, exist_ok=True)
        plans = self.plans()
        n = len([*(self.home / "done").glob("*")])
        play = Play(TOML, self.warehouse, partitions=3)
        offsets = Counter(record[0] for plan in plans[:n] for record in plan["records"])
        play.resume({"events": n}, {("events", partition): count for partition, count in offsets.items()})
        started = self.home / "started"
        epoch = int(started.read_text()) + 1 if started.exists() else 1
        _write(started, str(epoch))
        play.start(epoch=epoch)
        while True:
            if n == len(plans):
                if (plan := self._plan(n, {hour for plan in plans for hour in plan["late"]})) is None:
                    break
                _write(self.home / "plans" / f"{n}.json", json.dumps(plan))
                plans.append(plan)
            rows = [
                play.row("events", at_ms, partition=partition, key="a", id="a", v=value)
                for partition, at_ms, value in plans[n]["records"]
            ]
            play.process(n, rows, at_ms=decided_ms(n))
            (self.home / "done" / str(n)).touch()
            n += 1
            time.sleep(PACE_S)
        (self.home / "over").touch()

    def _plan(self, n: int, sent: set[int]) -> Plan | None:
        """Returns what batch *n* reads; None: everything was read."""
        waiting = [hour for hour in self.late() if hour not in sent]
        if n > LAST and not waiting:
            return None
        late = [hour for hour in waiting if self.read(hour).exists()]
        from_ms = decided_ms(n - 1) if n else 0
        records = [record for arrives_ms, record in in_time() if from_ms < arrives_ms <= decided_ms(n)]
        records += [(0, MIDNIGHT + hour * HOUR_MS + 5 * MINUTE_MS, 1_000) for hour in late]
        return {"records": records, "late": late, "at_s": time.time()}


def completed_by(plans: list[Plan]) -> dict[int, int]:
    """Returns the batch that completes each hour, record by record.

    A partition has passed an hour with a record of more than the bound after its end. All partitions that are not
    idle must have.
    """
    newest: dict[int, int] = {}
    read_at: dict[int, int] = {}
    done: dict[int, int] = {}
    for batch, plan in enumerate(plans):
        for partition, at_ms, _ in plan["records"]:
            newest[partition] = max(newest.get(partition, 0), at_ms)
            read_at[partition] = decided_ms(batch)
        active = [newest[p] for p in newest if decided_ms(batch) - read_at[p] <= IDLE_AFTER_MS]
        for hour in range(HOURS):
            end_ms = MIDNIGHT + (hour + 1) * HOUR_MS
            if hour not in done and active and min(active) >= end_ms + BOUND_MS:
                done[hour] = batch
    return done


def counted(plans: list[Plan]) -> dict[int, dict[str, int]]:
    """Returns number and sum of the records of each hour."""
    totals = {hour: {"n": 0, "sum": 0} for hour in range(HOURS)}
    for plan in plans:
        for _, at_ms, value in plan["records"]:
            if (hour := (at_ms - MIDNIGHT) // HOUR_MS) < HOURS:
                totals[hour]["n"] += 1
                totals[hour]["sum"] += value
    return totals


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


if __name__ == "__main__":
    Days(Path(sys.argv[1]), int(sys.argv[2])).drive()
