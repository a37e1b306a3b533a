"""Draws faults of drivers, broker and disk by a seed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from chaos.feed import PER_SECOND
from chaos.stage import SUBS, Stage
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

FACTS = ("latency_minutes", "operator_windows", "partition_batches", "operator_batches")
STEPS = {
    "players": (
        *("planned", "reading", "decided", "committed changes", "committed seen", "committed news"),
        *("committed changes_of_board", "merged board", "committed board"),
        *("committed hop_by_team", "committed suppressed", "committed dead_letters"),
        *("measured", *(f"committed {name}" for name in FACTS), "committed batches"),
        "done",
    ),
    "teams": (
        *("planned", "reading", "decided", "committed changes", "committed state_changes"),
        *("committed changes_of_team_board", "merged team_board", "committed team_board"),
        *("committed suppressed", "measured", *(f"committed {name}" for name in FACTS), "committed batches", "done"),
    ),
}
"""Steps between any two writes, per sub-topology.

A driver can be killed or stopped at each.
"""


@dataclass(frozen=True)
class Fault:
    """A fault while records flow.

    With *may_end* a driver may end, and is started again.
    """

    name: str
    happen: Callable[[Stage], None]
    may_end: bool = False


class Draw:
    """Draws faults; named steps come in turn until all were drawn."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self._left: list[tuple[str, str]] = []

    def faults(self, *, disk: bool = True) -> Iterator[Fault]:
        """Draws every kind of fault once, then any, mostly kills.

        Without a *disk* it draws none that a disk has.
        """
        kinds = {kind: often for kind, often in KINDS.items() if disk or kind is not disk_full}
        first = list(kinds)
        self.chance.shuffle(first)
        for kind in first:
            yield kind(self)
        while True:
            (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
            yield kind(self)

    def step(self) -> tuple[str, str]:
        """A sub-topology and one of its steps."""
        if not self._left:
            self._left = [(sub, step) for sub, steps in STEPS.items() for step in steps]
            self.chance.shuffle(self._left)
        return self._left.pop()

    def sub(self) -> str:
        return self.chance.choice(SUBS)

    def seconds(self, least: float, most: float) -> float:
        return round(self.chance.uniform(least, most), 2)


def killed_at_a_step(draw: Draw) -> Fault:
    sub, step = draw.step()

    def happen(stage: Stage) -> None:
        _kill_at(stage, sub, step)
        stage.start(sub)

    return Fault(f'kill -9 of {sub} at "{step}"', happen)


def killed_again_at_recovery(draw: Draw) -> Fault:
    """Kills a driver, and the next one in the same batch.

    The first steps of the next driver are those of the batch that the previous driver was in.
    """
    sub, step = draw.step()
    again = draw.chance.choice([step for step in STEPS[sub] if step.startswith("committed")])

    def happen(stage: Stage) -> None:
        _kill_at(stage, sub, step)
        stage.start(sub)
        _kill_at(stage, sub, again)
        stage.start(sub)

    return Fault(f'kill -9 of {sub} at "{step}", and of the next one at "{again}"', happen)


def killed_at_random(draw: Draw) -> Fault:
    subs = draw.chance.choice([("players",), ("teams",), SUBS])
    after_s = draw.seconds(0.5, 3)

    def happen(stage: Stage) -> None:
        stage.pause(after_s)
        for sub in subs:
            stage.restart(sub)

    return Fault(f"kill -9 of {' and '.join(subs)} after {after_s} s", happen)


def killed_while_it_starts(draw: Draw) -> Fault:
    sub, after_s = draw.sub(), draw.seconds(0, 9)

    def happen(stage: Stage) -> None:
        stage.restart(sub)
        stage.pause(after_s)
        stage.restart(sub)

    return Fault(f"kill -9 of {sub}, and of the next one after {after_s} s", happen)


def broker_killed(draw: Draw) -> Fault:
    after_s, away_s = draw.seconds(0.5, 2), draw.seconds(0, 4)

    def happen(stage: Stage) -> None:
        stage.pause(after_s)
        stage.kill_broker()
        stage.pause(away_s)
        stage.start_broker()
        stage.pause(1)

    return Fault(f"kill -9 of the broker, which is back {away_s} s later", happen, may_end=True)


def second_driver(draw: Draw) -> Fault:
    sub = draw.sub()

    def happen(stage: Stage) -> None:
        status = stage.second(sub).exit()
        assert status == 3, f"a second driver must be refused with 3, and ended with {status}"

    return Fault(f"a second driver of {sub}", happen)


def taken_over(draw: Draw) -> Fault:
    sub, step = draw.step()

    def happen(stage: Stage) -> None:
        older = stage.drivers[sub]
        older.tell(signal.SIGSTOP, step)
        stage.wait(older.has_reached, f"{sub} at {step}")
        stage.pause(1.5)
        newer = stage.start(sub, "--take-over", "--silent-after", "1")
        stage.wait(lambda: bool(newer.offsets()), f"a batch of the driver that took {sub} over")
        older.wake()
        status = older.exit()
        assert status == 3, f"a driver that was taken over must end with 3, and ended with {status}"

    return Fault(f'{sub} stopped at "{step}", taken over, and woken', happen)


def disk_full(draw: Draw) -> Fault:
    left, behind_s = 1024 * draw.chance.choice((0, 16, 64)), draw.seconds(4, 8)

    def happen(stage: Stage) -> None:
        with stage.full_disk(left):
            stage.wait(lambda: stage.behind() > behind_s * PER_SECOND, "a driver that can write no more")

    return Fault(f"a disk that is full but for {left} bytes, until {behind_s} s are not read", happen)


def optimized(draw: Draw) -> Fault:
    """Rewrites the tables as another writer would, some more than once."""
    order = [draw.chance.random() for _ in range(100)]

    def happen(stage: Stage) -> None:
        tables = [table for sub in SUBS for table in stage.tables(sub)]
        for _, table in sorted(zip(order, tables, strict=False)):
            with suppress(CommitFailedError):  # the driver was first
                DeltaTable(str(table)).optimize.compact()

    return Fault("OPTIMIZE of all tables", happen)


def worker_killed(draw: Draw) -> Fault:
    """Kills Spark's Python workers.

    Spark retries a task if its master allows it; here it does not, and the driver may end.
    """
    sub, after_s = draw.sub(), draw.seconds(0, 2)

    def happen(stage: Stage) -> None:
        stage.pause(after_s)
        stage.wait(lambda: stage.drivers[sub].kill_workers() > 0 or stage.shards == 1, f"a worker of {sub}")

    return Fault(f"kill -9 of the Python workers of {sub} after {after_s} s", happen, may_end=True)


def copies_harmed(draw: Draw) -> Fault:
    """Damages local copies of states before the next driver starts.

    They are deleted, torn or swapped.
    """
    sub, first = draw.sub(), draw.chance.randrange(3)

    def happen(stage: Stage) -> None:
        stage.drivers[sub].end()
        copies = stage.copies()
        contents = [copy.read_bytes() for copy in copies]
        for number, copy in enumerate(copies, first):
            copy.unlink()
            if number % 3 == 0:
                copy.write_bytes(contents[number - first][:-50])
            elif number % 3 == 1:
                copy.write_bytes(contents[number - first - 1])
        stage.start(sub)

    return Fault(f"copies of states are deleted, torn or stale, and {sub} starts", happen)


KINDS: dict[Callable[[Draw], Fault], int] = {
    killed_at_a_step: 10,
    killed_again_at_recovery: 3,
    killed_at_random: 6,
    killed_while_it_starts: 2,
    broker_killed: 2,
    second_driver: 1,
    taken_over: 2,
    disk_full: 2,
    optimized: 2,
    worker_killed: 2,
    copies_harmed: 2,
}
"""How often each comes, relative to the others."""


def _kill_at(stage: Stage, sub: str, step: str) -> None:
    driver = stage.drivers[sub]
    driver.tell(signal.SIGKILL, step)
    stage.wait(lambda: driver.exit_status() is not None, f"{sub} at {step}")
    assert driver.has_reached(), f"the driver of {sub} ended before {step}\n{driver.log()}"
    driver.end()
