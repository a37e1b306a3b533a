"""Windowed sinks have timestamp bounds, and `window_final` marks final rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from support.crashes import Crash, crash_at
from support.play import Play, ms
from support.topologies import EVENTS, aggregate, current, map_of, operators, sink
from tidemark.model.project.layout import Layout
from tidemark.storage.delta.tables import scan

COUNTS = operators(
    counts=aggregate(
        key=["id"],
        window={"tumbling": "10 s"},
        allowed_lateness="2 s",
        aggregates={"n": "count(*)"},
        select={"n": "n", "until": "window_end"},
    )
)
SINKS = operators(
    renamed=map_of(
        "counts", select={"id": "id", "opened": "window_start", "until": "until", "half": "until / 2", "n": "n"}
    ),
    log=sink("renamed", table="log"),
    board=current("counts", "board", key=["id", "window_start"]),
)
ALL = EVENTS + COUNTS + SINKS


def table(play: Play, name: str) -> Path:
    return Layout(play.home).stream_table("play", play.topology.sub_topologies[0].name, name)


def rows(play: Play, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns *columns* of sink table *name* by offsets and windows."""
    return scan(table(play, name)).sort("source_offset", columns[0]).select(columns).collect().rows()


def types(play: Play, name: str) -> dict[str, str]:
    return {field.name: str(field.type) for field in DeltaTable(str(table(play, name))).to_pyarrow_dataset().schema}


def take(play: Play, *seconds: float, at_s: float | None = None) -> None:
    """Runs one batch with a record of `a` at each of *seconds*."""
    events = [play.row("events", ms(second), id="a", v=1) for second in seconds]
    play.batch(events, at_ms=ms(max(seconds) if at_s is None else at_s))


def at(second: int) -> datetime:
    return datetime(2014, 5, 13, 12, 0, second, tzinfo=UTC)


def test_bounds_are_timestamps_under_any_name(tmp_path: Path) -> None:
    play = Play(ALL, tmp_path)
    take(play, 1, 12)
    assert rows(play, "log", "opened", "until", "n") == [(at(0), at(10), 1), (at(10), at(20), 1)]
    assert rows(play, "board", "window_start", "until") == [(at(0), at(10)), (at(10), at(20))]
    kinds = types(play, "log")
    assert [kinds[c] for c in ("opened", "until", "half")] == [
        "timestamp[us, tz=UTC]",
        "timestamp[us, tz=UTC]",
        "double",
    ]
    comments = {field.name: field.metadata["comment"] for field in DeltaTable(str(table(play, "log"))).schema().fields}
    assert comments["opened"] == "start of the window, inclusive: record time"
    assert comments["until"] == "end of the window, exclusive: record time"
    assert comments["window_final"].startswith("whether its window is closed")


def test_current_rows_become_final_when_their_window_closes(tmp_path: Path) -> None:
    play = Play(ALL, tmp_path)
    take(play, 1, 2)
    take(play, 12.9)  # the watermark is 1 ms before 11.9: the window until 10 s is open until 12 s
    assert rows(play, "board", "window_start", "n", "window_final") == [(at(0), 2, False), (at(10), 1, False)]
    take(play, 13)
    assert rows(play, "board", "window_start", "n", "window_final") == [(at(0), 2, True), (at(10), 2, False)]
    written = {row["n"]: row["window_final"] for row in play.rows("log")}
    assert written == {1: False, 2: False}  # as it was when each row was written


def test_a_batch_without_rows_for_the_sink_makes_rows_final(tmp_path: Path) -> None:
    marked = ALL + operators(big=map_of(where="v > 5", select={"id": "id", "v": "v"}))
    play = Play(marked.replace('input = "events"\nkey', 'input = "big"\nkey'), tmp_path)
    for second, v in ((1, 9), (30, 1)):
        play.batch([play.row("events", ms(second), id="a", v=v)], at_ms=ms(second))
    assert rows(play, "board", "window_start", "n", "window_final") == [(at(0), 1, True)]
    commits = DeltaTable(str(table(play, "board"))).version()
    play.batch([play.row("events", ms(31), id="a", v=1)], at_ms=ms(31))
    assert DeltaTable(str(table(play, "board"))).version() == commits  # nothing was left to say


@pytest.mark.parametrize("step", ["decided", "committed board"])
def test_a_crash_makes_no_row_final_twice(tmp_path: Path, step: str) -> None:
    play = Play(ALL, tmp_path)
    take(play, 1, 2)
    sub = play.topology.sub_topologies[0].name
    play.start(sub, crash_at(step))
    last = [play.row("events", ms(13), id="a", v=1)]
    with pytest.raises(Crash):
        play.process(1, last, at_ms=ms(13), sub=sub)
    play.start(sub, epoch=2)
    play.process(1, last, at_ms=ms(13), sub=sub)
    assert rows(play, "board", "window_start", "n", "window_final") == [(at(0), 2, True), (at(10), 1, False)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ('strategy = "on_window_close"', {(0, 2, True)}),
        ('strategy = "periodic"\ninterval = "5 s"', {(0, 2, False), (0, 3, True), (20, 1, False)}),
    ],
)
def test_rows_of_closed_windows_are_final_when_written(tmp_path: Path, strategy: str, expected: set[Any]) -> None:
    play = Play(f"{EVENTS}{COUNTS}{strategy}\n{SINKS}", tmp_path)
    take(play, 1, at_s=1)
    take(play, 2, at_s=6)
    if "periodic" in strategy:
        take(play, 3, at_s=7)
    take(play, 25, at_s=26)
    found = {((row["opened"] - ms(0)) // 1_000, row["n"], row["window_final"]) for row in play.rows("log")}
    assert found == expected


def test_sessions_without_an_end_column_have_a_null_final_flag(tmp_path: Path) -> None:
    windows: Mapping[str, str] = {"tumbling": "session", 'until = "window_end"': 'm = "n"', '"until"': '"m"'}
    toml = ALL
    for old, new in windows.items():
        toml = toml.replace(old, new)
    play = Play(toml.replace("until / 2", "m / 2"), tmp_path)
    take(play, 1, 40)
    assert [final for (final,) in rows(play, "log", "window_final")] == [None, None]
