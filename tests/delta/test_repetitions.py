"""Latency of results that repeat, or that end with a window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.play import Play
from support.topologies import aggregate, map_of, operators, sink, source, table, topology_of

T = 1_770_033_600_000
TICKING = topology_of(
    {"level": "trace", "window": "10 s"}, events=source(), ticking=table(strategy="periodic", interval="10 s")
)
SINK = operators(board=sink("{}", table="board"))
PER_MINUTE = TICKING.partition("[operators.ticking]")[0] + operators(
    per_minute=aggregate(
        key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
    )
)
HOP = """
[operators.spread]
kind = "repartition"
input = "{}"
id = ["id"]
key = ["{}"]
columns = ["id"]
strategy = "on_update"
[operators.far]
kind = "aggregate"
sub_topology = "far"
input = "spread"
aggregates = {{ total = "count(*)" }}
strategy = "on_update"
[operators.board]
kind = "sink"
input = "far"
table = "board"
"""


def latency(play: Play, operator: str, sub: str | None = None) -> list[tuple[int, ...]]:
    found = [row for row in play.rows("operator_batches", sub) if row["operator"] == operator and row["n"]]
    return [tuple(row[c] for c in ("batch_id", "n", "min_ms", "max_ms")) for row in found]


def counted(play: Play, operator: str, word: str) -> list[int]:
    return [row[word] for row in play.rows("operator_batches") if row["operator"] == operator]


def ticked(toml: str, home: Path) -> Play:
    """Sends a once and b per interval; an hour later b again.

    Both are sent on at the end of an interval.
    """
    play = Play(toml, home)
    for at_ms, ids in ((T + 1_000, "ab"), (T + 11_000, ""), (T + 12_000, "b"), (T + 21_000, ""), (T + 3_600_000, "b")):
        play.batch([play.row("events", at_ms - 500, id=id_, v=at_ms % 97) for id_ in ids], at_ms=at_ms)
    return play


def test_a_sink_after_a_periodic_table_measures_new_results(tmp_path: Path) -> None:
    play = ticked(TICKING + SINK.format("ticking"), tmp_path)
    assert latency(play, "board") == [(1, 2, 10_500, 10_500), (3, 1, 9_500, 9_500), (4, 1, 500, 500)]
    assert counted(play, "ticking", "repeated")[1:] == [0, 0, 1, 1]
    assert counted(play, "board", "passed") == [2, 2, 2]


def test_a_map_and_a_second_table_measure_only_new_results(tmp_path: Path) -> None:
    twice = operators(again=table("ticking", strategy="on_update"))
    play = ticked(TICKING + twice + SINK.format("again"), tmp_path)
    assert latency(play, "board") == [(1, 2, 10_500, 10_500), (3, 1, 9_500, 9_500), (4, 1, 500, 500)]


def test_a_new_driver_knows_the_results_already_sent(tmp_path: Path) -> None:
    play = ticked(TICKING + SINK.format("ticking"), tmp_path)
    play.start(epoch=2)
    play.batch(at_ms=T + 3_611_000)
    assert latency(play, "board")[3:] == []
    assert counted(play, "board", "passed") == [2, 2, 2, 2]


@pytest.mark.parametrize("behind", ["per_minute", "mapped"])
def test_a_window_s_result_has_the_latency_of_its_newest_record(tmp_path: Path, behind: str) -> None:
    mapped = operators(mapped=map_of("per_minute", select={"id": "id", "n": "n"}))
    play = Play(PER_MINUTE + mapped + SINK.format(behind), tmp_path)
    play.batch([play.row("events", T + 20_000, id="a"), play.row("events", T + 50_000, id="a")], at_ms=T + 51_000)
    play.start(epoch=2)
    play.batch([play.row("events", T + 10_000, id="a"), play.row("events", T + 62_000, id="b")], at_ms=T + 63_000)
    assert latency(play, "board") == [(1, 1, 13_000, 13_000)]
    assert [row["timestamp"] for row in play.rows("board")] == [T + 59_999]
    windows = {(row["window_start"] - T, row["records"]) for row in play.rows("operator_windows")
               if row["operator"] == "board"}  # fmt: skip
    assert (50_000, 1) in windows


def test_a_windows_result_keeps_its_latency_across_a_hop(tmp_path: Path) -> None:
    play = Play(PER_MINUTE + HOP.format("per_minute", "n"), tmp_path)
    play.batch([play.row("events", T + 50_000, id="a")], at_ms=T + 51_000)
    play.batch([play.row("events", T + 62_000, id="b")], at_ms=T + 63_000)
    play.hop("far", at_ms=T + 65_000)
    assert latency(play, "board", "far") == [(0, 1, 15_000, 15_000)]


def test_a_repetition_downstream_of_a_hop_is_not_measured(tmp_path: Path) -> None:
    """The table has a row of a and of b, then repetitions.

    Two for each new value of b, and one for each time that a is repeated.
    """
    play = ticked(TICKING + HOP.format("ticking", "v"), tmp_path)
    play.hop("far", at_ms=T + 3_601_000)
    assert [n for _, n, _, _ in latency(play, "board", "far")] == [6]


def test_the_value_of_a_periodic_table_is_only_its_columns(tmp_path: Path) -> None:
    play = ticked(TICKING, tmp_path)
    # a and b at the first tick, then b whenever it was new.
    values = [set(json.loads(row["value"])) for row in play.rows("changes")]
    assert values == [{"v", "event_time"}] * 4
