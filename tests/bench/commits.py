"""Counts Delta commits per second of `flights/status`, equal on every machine.

Each second brings a batch: every flight of one airport has a new status, and repeats it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.ratios import Figure
from deltalake import DeltaTable

from support.flights_day import few_flights
from support.play import NOON, Play
from tidemark.model.project.files import CHECKOUT as PROJECT

SECONDS = 60
OUTPUTS = frozenset({"changes", "flight_board", "hop_by_carrier"})
TOPOLOGY = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text()


@dataclass(frozen=True)
class Commits:
    """Commits per batch, commits to tables of facts per ten seconds, and files of tables and their logs in all."""

    of_a_batch: float
    of_ten_seconds: float
    files: int

    @property
    def a_second(self) -> float:
        """All of them."""
        return self.of_a_batch + self.of_ten_seconds / 10


def commits(home: Path, *, facts_every_ms: int, trigger_s: int = 1) -> Commits:
    """Counts commits of SECONDS batches, one per *trigger_s*.

    Counting begins after ten seconds of start.
    """
    play = Play(TOPOLOGY, home, facts_every_ms=facts_every_ms)
    play.broker._partitions = {"flight_events": 3, "weather": 1}
    batches(play, range(0, 11, trigger_s))
    before, files_before = _versions(play), _files(play)
    batches(play, seconds := range(10 + trigger_s, 11 + SECONDS, trigger_s))
    made = {name: version - before[name] for name, version in _versions(play).items()}
    of_outputs = sum(n for name, n in made.items() if name in OUTPUTS)
    return Commits(
        of_outputs / len(seconds), (sum(made.values()) - of_outputs) * 10 / SECONDS, len(_files(play) - files_before)
    )


def figures(runs: int) -> Iterator[Figure]:
    """Compares commits with facts per batch and per thirty seconds."""
    for facts_every_ms, limit in ((0, None), (30_000, 4.6)):
        with TemporaryDirectory() as home:
            found = commits(Path(home), facts_every_ms=facts_every_ms)
        named = f"commits a second of flights/status, facts every {facts_every_ms // 1_000} s"
        yield Figure(named, [found.a_second], limit, at_most=True, unit="commits/s")
        # In an object store each is a PUT.
        files = named.replace("commits", "files of tables and logs")
        yield Figure(files, [found.files / SECONDS], unit="files/s")


def batches(play: Play, seconds: range) -> None:
    for second in seconds:
        at_ms = NOON + second * 1_000
        play.batch(few_flights(play, at_ms, second), at_ms=at_ms, sub="status")


def _files(play: Play) -> set[Path]:
    return {file for file in play.table("batches", "status").parent.rglob("*") if file.is_file()}


def _versions(play: Play) -> dict[str, int]:
    logs = play.table("batches", "status").parent.glob("*/_delta_log")
    return {log.parent.name: DeltaTable(str(log.parent)).version() for log in logs}
