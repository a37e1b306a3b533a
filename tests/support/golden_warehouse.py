"""Writes a warehouse whose results `tests/delta/test_golden.py` has, worked out by hand.

The clock is that of the records, and each batch takes no time. A new feature with state gets records of its own, after
those below.

Record times are seconds after NOON, in order of arrival; the bound is 3 s:
a 5 at 1, b 7 at 2, a 5 at 3; then a 6 at 12 and a record that is no JSON; then c 1 at 20; then b 9 at 4, which is late
for the window from 0 to 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import critical_path
import rollup
from support.play import NOON, Play, bad, ms
from support.topologies import aggregate, current, repartition, sink, source, table, topology_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.reports.rollups.outline import outline

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
)
HOUR = Interval(NOON, NOON + 3_600_000)
BATCHES: Mapping[str, int] = {"events": 4, "by_id": 4, "by_id/hop": 4}
"""Batches of each stream, and those of the hop."""
OFFSETS: Mapping[tuple[str, int], int] = {("events", 0): 7}


def write(home: Path) -> Play:
    """Writes the warehouse below *home*, and its topology's file."""
    (home / TOPOLOGY).write_text(TOML)
    play = Play(TOML, home / "warehouse")
    batches = (
        [record(play, "a", 5, 1), record(play, "b", 7, 2), record(play, "a", 5, 3)],
        [record(play, "a", 6, 12), bad("malformed_json")(play)],
        [record(play, "c", 1, 20)],
        [record(play, "b", 9, 4)],
    )
    for number, rows in enumerate(batches):
        play.batch(rows, at_ms=ms(30 + number))
        play.hop(play.topology.sub_topologies[1].name, at_ms=ms(40 + number))
    play.settle()
    layout = Layout(play.home)
    rollup.run(layout, "golden", topology_outline=outline(play.topology, ()))
    critical_path.run(layout, play.topology, (), HOUR)
    return play


def record(play: Play, key: str, value: int, second: int) -> dict[str, object]:
    """Returns a record of *key* at *second*."""
    return play.row("events", ms(second), key=key, id=key, v=value)
