"""A world with a recorded job: the reports of its Spark are played, and nothing of Tidemark runs in it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.play import ms
from support.recorded_jobs import Job, topic
from support.world import Fault, Sent
from tidemark.model.project.layout import Layout
from tidemark.model.topology import Topology
from tidemark.recorded_jobs.queries import recorded_topology

EVERY_S = 60
"""A record is sent, and a batch runs, this often."""


class JobWorld:
    """The job `job` of the topology `shop`, which reads the topic `orders`, in the warehouse *home*."""

    def __init__(self, toml: str, home: Path, **unused: object) -> None:
        self.home, self.layout = home, Layout(home)
        self.drivers: dict[str, object] = {}
        self.faults: tuple[Fault, ...] = ()
        self.planted: dict[Fault, list[int]] = defaultdict(list)
        self.job = Job(home, "job")
        self.read = 0
        self.now_ms = ms(0)

    @property
    def topology(self) -> Topology:
        found = recorded_topology(self.layout, "shop")
        assert found is not None
        return found

    def copy(self, home: Path) -> JobWorld:
        """Returns the world as far as it has come, in the warehouse *home*."""
        shutil.copytree(self.home, home)
        world = JobWorld("", home)
        world.job.batches, world.read, world.now_ms = self.job.batches, self.read, self.now_ms
        return world

    def plant(self, *faults: Fault) -> Self:
        """Lets *faults* happen from now on."""
        self.faults += faults
        return self

    def run(self, until_s: float) -> None:
        """Runs a batch for each record that is sent until then."""
        every_ms = EVERY_S * 1_000
        instants = range(self.now_ms + every_ms, ms(until_s) + 1, every_ms)
        for at_ms in instants:
            sent: list[Sent] = [Sent("job:orders", 0, at_ms, at_ms, at_ms + 200, "a0")]
            for fault in self.faults:
                sent = [changed for each in sent for changed in fault.sends(self, each)]  # type: ignore[arg-type]
            took_ms = 700
            for fault in self.faults:
                if isinstance(fault, SlowJob) and sent and fault.since_s <= (at_ms - ms(0)) / 1_000 < fault.until_s:
                    self.planted[fault].append(fault.by_ms)
                    took_ms += fault.by_ms
            if sent:
                self.read += 1
                orders = topic("orders", self.read - 1, self.read)
                self.job.batch(at_ms + 1_000, orders, newest_ms=at_ms, took_ms=took_ms, is_last=at_ms == instants[-1])
            self.job.record.flush()
        self.now_ms = ms(until_s)


@dataclass(frozen=True)
class SlowJob(Fault):
    """Batches of the job take `by_ms` longer."""

    since_s: float
    until_s: float
    by_ms: int

    @property
    def whose(self) -> tuple[str, str]:
        return "operator", "job"

    def sends(self, world: object, sent: Sent) -> Iterable[Sent]:
        return [sent]
