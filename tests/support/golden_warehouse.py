"""Writes a warehouse whose results `tests/delta/test_golden.py` has, worked out by hand.

`PYTHONPATH=jobs:tests python -m support.golden_warehouse` writes it into an archive of the present format, after a
driver was killed in it; the test reads the archive if there is one. An archive is written once, so the records below
never change. A new feature with state gets records of its own, after those.

The clock is that of the records, and each batch takes no time. Record times are seconds after NOON, in order of
arrival; the bound is 3 s:
a 5 at 1, b 7 at 2, a 5 at 3; then a 6 at 12 and a record that is no JSON; then c 1 at 20; then b 9 at 4, which is late
for the window from 0 to 10. The rate of a is 10 from 0 on, and comes with the first batch; that of b is 20 from 1 on,
and comes with the second one.

Then a driver that keeps facts in its journal reads c 2 at 22 and a 8 at 35, and is killed in its next batch, with b 11
at 36, after it has committed `changes`.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import critical_path
import rollup
from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, bad, ms
from support.topologies import (
    aggregate,
    current,
    join,
    map_of,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.reports.outline import outline
from tidemark.storage.delta.format import FORMAT

ARCHIVE = Path(__file__).parents[1] / "delta" / "golden" / f"format-{FORMAT}.tar.xz"
TOPOLOGY = "golden.toml"
TOML = topology_of(
    {"name": "golden"},
    events=source(bound="3 s"),
    newest=table(),
    board=current("newest", "board"),
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)", "total": "sum(v)"}),
    minutes=sink("counts", table="minutes"),
    by_id=repartition("newest", key=["id"], id=["id"], columns=["v"]),
    ever=aggregate("by_id", aggregates={"ids": "count(*)", "total": "sum(v)"}),
    ever_board=sink("ever", table="ever_board"),
    rates=source("rid string, rate int", topic="rates", bound="3 s"),
    rate=table("rates", key=["rid"]),
    large=map_of(select={"id": "id", "v": "v"}, where="v > 5"),
    small=map_of(select={"id": "id", "v": "v"}, where="v <= 5"),
    rated=join("large", "rate", on={"id": "rid"}),
    rated_log=sink("rated", table="rated_log"),
    both={"kind": "union", "inputs": ["small", "large"]},
    all_log=sink("both", table="all_log"),
    out=sink("newest", topic="newest"),
)
HOUR = Interval(NOON, NOON + 3_600_000)
BATCHES: Mapping[str, int] = {"events": 4, "by_id": 4, "by_id/hop": 4}
"""Batches of each stream, and those of the hop, before a driver is killed."""
OFFSETS: Mapping[tuple[str, int], int] = {("events", 0): 7, ("rates", 0): 2}
BATCHES_DECIDED: Mapping[str, int] = {"events": 5, "by_id": 5, "by_id/hop": 5}
"""Batches that were finished when it was killed."""
OFFSETS_DECIDED: Mapping[tuple[str, int], int] = {("events", 0): 9, ("rates", 0): 2}


def write(home: Path) -> Play:
    """Writes the warehouse below *home*, and its topology's file."""
    (home / TOPOLOGY).write_text(TOML)
    play = Play(TOML, home / "warehouse")
    for number, rows in enumerate(records(play)):
        play.batch(rows, at_ms=ms(30 + number))
        play.hop("by_id", at_ms=ms(40 + number))
    play.settle()
    layout = Layout(play.home)
    rollup.run(layout, "golden", topology_outline=outline(play.topology, ()))
    critical_path.run(layout, play.topology, (), HOUR)
    return play


def records(play: Play) -> tuple[list[Row], ...]:
    """Returns the records of each batch."""
    return (
        [record(play, "a", 5, 1), record(play, "b", 7, 2), record(play, "a", 5, 3), rate(play, "a", 10, 0)],
        [record(play, "a", 6, 12), bad("malformed_json")(play), rate(play, "b", 20, 1)],
        [record(play, "c", 1, 20)],
        [record(play, "b", 9, 4)],
    )


def interrupt(home: Path) -> None:
    """Goes on with the warehouse below *home* until its driver is killed in the middle of a batch."""
    play = Play(TOML, home / "warehouse", facts_every_ms=3_600_000)
    play.resume(BATCHES, OFFSETS)
    kill, is_killed = crash_at("committed changes"), False
    play.start(epoch=2, reached=lambda step: kill(step) if is_killed else None)
    play.batch([record(play, "c", 2, 22), record(play, "a", 8, 35)], at_ms=ms(50))
    play.hop("by_id", at_ms=ms(51))
    is_killed = True
    with pytest.raises(Crash):
        play.batch(last_records(play), at_ms=ms(60))


def last_records(play: Play) -> list[Row]:
    """Returns the records of the batch in which the driver is killed."""
    return [record(play, "b", 11, 36)]


def record(play: Play, key: str, value: int, second: int) -> Row:
    """Returns a record of *key* at *second*."""
    return play.row("events", ms(second), key=key, id=key, v=value)


def rate(play: Play, key: str, value: int, second: int) -> Row:
    """Returns the rate of *key* from *second* on."""
    return play.row("rates", ms(second), key=key, rid=key, rate=value)


def main() -> None:
    """Writes the archive of the present format, unless it exists."""
    if ARCHIVE.exists():
        sys.exit(f"{ARCHIVE} exists; remove it first if no version with this format was released")
    ARCHIVE.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        home = Path(folder)
        write(home)
        interrupt(home)
        with tarfile.open(ARCHIVE, "w:xz") as packed:
            for name in (TOPOLOGY, "warehouse"):
                packed.add(home / name, name)
    sys.stdout.write(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
