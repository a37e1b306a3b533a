"""A stopped stream that each command for repairs can repair."""

from __future__ import annotations

import json
import shutil
from copy import copy
from pathlib import Path

from support.play import NOON, Play, bad, ms
from support.topologies import aggregate, current, source, topology_of

TOML = topology_of(
    events=source(),
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, reopen_for="1 min", aggregates={"n": "count(*)"}),
    board=current("counts", "board", key=["id", "window_start"]),
)
FUTURE_S = 2_000_000
LOSS = "accept-loss play events --source events --partition 0 --until 9"
RESET = "reset-time play events --source events --partition 1 --to 2014-05-13T12:00:30Z"
REMOVAL = "doctor play events --apply remove-torn"
REOPENING = "requeue play --late --reopen"
RESHARDING = "reshard play events --shards 2"
REQUEUING = "requeue play --reason malformed_json"
COMMANDS = (LOSS, RESET, REMOVAL, REOPENING, RESHARDING)


class Repairable:
    """A project in *home* whose one stream has stopped.

    Partition 0 was read until offset 4: a window is closed at 10 s, and a record of 4 s was late for it. The newest
    record of partition 1 is from the future; the one after it, at offset 2, is in quarantine. A plan of Spark that
    nothing has used is torn. The warehouse is in `warehouse`.
    """

    def __init__(self, home: Path) -> None:
        for folder in ("topologies", "expectations"):
            (home / folder).mkdir(parents=True)
        (home / "topologies" / "play.toml").write_text(TOML)
        self._lies_in(home, Play(TOML, home / "warehouse", partitions=2))
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True)
        self.read = [0, 0]
        self._batches = 0
        self.batch((0, 1), (0, 2))
        self.batch((0, 25), (1, 25))
        self.batch((0, 4), (1, FUTURE_S), quarantined=1)
        self.torn.write_text("v1")

    def _lies_in(self, home: Path, play: Play) -> None:
        self.home, self.warehouse, self.play = home, home / "warehouse", play
        self.checkpoint = play.control.home / "checkpoint"

    @property
    def torn(self) -> Path:
        """The torn plan."""
        return self.checkpoint / "offsets" / "3"

    def copy(self, home: Path) -> Repairable:
        """Copies the project to *home*, with a driver of its own."""
        shutil.copytree(self.home, home)
        made = copy(self)
        made.read = [*self.read]
        made._lies_in(home, self.play.copy(home / "warehouse"))
        return made

    def batch(self, *records: tuple[int, float], quarantined: int | None = None) -> None:
        """Processes records, each with its partition and the second of its time.

        The last record of the partition *quarantined* is malformed.
        """
        n, rows = self._batches, []
        for partition, second in records:
            rows.append(self.play.row("events", ms(second), partition=partition, key="a", id="a", v=1))
            self.read[partition] += 1
        if quarantined is not None:
            rows.append(bad("malformed_json", part=quarantined)(self.play))
            self.read[quarantined] += 1
        ends = {str(partition): end for partition, end in enumerate(self.read)}
        lines = ["v1", '{"batchWatermarkMs":0}', str(n), "-", json.dumps({"events": ends})]
        (self.checkpoint / "offsets" / str(n)).write_text("\n".join(lines))
        self.play.batch(rows, at_ms=NOON + 27_000 + n)
        (self.checkpoint / "commits" / str(n)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self._batches += 1
