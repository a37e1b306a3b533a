"""A union has all records of two flows and their lowest watermark.

It loses no update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.play import Play
from support.topologies import aggregate, map_of, operators, repartition, sink, source, table, topology_of
from tidemark.errors import InvalidSpec
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.why.walk import why

T = 1_400_000_000_000 - 1_400_000_000_000 % 60_000
SOURCES = topology_of(
    web=source(topic="web", idle_after="30 s"), app=source(topic="app", bound="5 s", idle_after="30 s")
)
UNITED = operators(
    visits={"kind": "union", "inputs": ["web", "app"]},
    all=sink("visits", table="all_of_it"),
    minutes=aggregate(
        "visits", key=["id"], window={"tumbling": "10 s"}, strategy="on_window_close", aggregates={"n": "count(*)"}
    ),
    board=sink("minutes", table="board"),
)
HOP = operators(
    by_id=repartition("web", key=["id"], columns=["v"]),
    of_app=map_of("app", select={"id": "id", "v": "v"}),
    visits={"kind": "union", "inputs": ["by_id", "of_app"]},
    minutes=aggregate(
        "visits",
        sub_topology="second",
        key=["id"],
        window={"tumbling": "10 s"},
        strategy="on_window_close",
        aggregates={"n": "count(*)"},
    ),
)


def visit(play: Play, source: str, second: float, id_: str = "a", v: int = 1) -> dict[str, Any]:
    return play.row(source, T + round(second * 1000), key=id_, id=id_, v=v)


def watermark_s(play: Play, sub: str | None = None) -> float:
    return (play.rows("batches", sub)[-1]["watermark"] - T) / 1000


def board(play: Play) -> list[tuple[float, int]]:
    return [((row["window_start"] - T) / 1000, row["n"]) for row in play.rows("board")]


def check_accounting(play: Play) -> None:
    for sub in play.topology.sub_topologies:
        for row in play.rows("operator_batches", sub.name):
            assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


def test_a_union_has_all_records_and_the_lowest_watermark(tmp_path: Path) -> None:
    play = Play(SOURCES + UNITED, tmp_path)
    play.batch([visit(play, "app", 2), visit(play, "web", 1), visit(play, "web", 12)], at_ms=T + 12_000)
    assert [(row["event_time"] - T) // 1000 for row in play.rows("all_of_it")] == [1, 12, 2], "the first input first"
    assert watermark_s(play) == 2 - 5 - 0.001
    play.batch([visit(play, "web", 30)], at_ms=T + 30_000)
    assert board(play) == [], "app has come to 2 s only"
    play.batch([visit(play, "app", 15), visit(play, "app", 3)], at_ms=T + 31_000)
    assert (watermark_s(play), board(play)) == (9.999, [(0, 3)]), "with the record that was out of order"
    united = [row for row in play.rows("operator_batches") if row["operator"] == "visits"]
    assert [(row["records_in"], row["passed"]) for row in united] == [(3, 3), (1, 1), (2, 2)]
    assert play.rows("late_records") == []
    check_accounting(play)


def test_an_idle_input_of_a_union_does_not_hold_time_back(tmp_path: Path) -> None:
    play = Play(SOURCES + UNITED, tmp_path)
    play.batch([visit(play, "app", 1), visit(play, "web", 1)], at_ms=T)
    play.batch([visit(play, "web", 40)], at_ms=T + 31_000)  # app has been silent for more than 30 s
    assert (watermark_s(play), board(play)) == (38.999, [(0, 2)])
    play.batch([visit(play, "app", 20), visit(play, "web", 50)], at_ms=T + 40_000)
    assert watermark_s(play) == 48.999, "an input that is behind holds no other back until it has caught up"
    (late,) = play.rows("late_records")
    assert (late["operator"], late["lateness_ms"]) == ("minutes", 18_999)
    play.batch([visit(play, "app", 60), visit(play, "web", 70)], at_ms=T + 41_000)
    assert watermark_s(play) == 54.999
    check_accounting(play)


def test_a_union_reads_rows_of_a_hop(tmp_path: Path) -> None:
    play = Play(SOURCES + HOP, tmp_path)
    first, second = (sub.name for sub in play.topology.sub_topologies)
    play.batch([visit(play, "web", 1), visit(play, "web", 25)], at_ms=T, sub=first)
    play.hop(second, at_ms=T)
    assert play.rows("batches", second)[-1]["watermark"] is None, "app has no watermark yet"
    play.batch([visit(play, "app", 2), visit(play, "app", 22)], at_ms=T + 1000, sub=second)
    assert watermark_s(play, second) == 16.999
    assert [row["value"] for row in play.rows("changes", second)] == ['{"n":2}']
    check_accounting(play)


def test_why_looks_at_every_input_of_a_union(tmp_path: Path) -> None:
    play = Play(SOURCES + UNITED, tmp_path)
    play.batch([visit(play, "web", 1)], at_ms=T)
    causes = {(f.cause, f.operator) for f in why(play.topology, Layout(tmp_path), at_ms=T + 1000, operator="minutes")}
    assert ("source_empty", "app") in causes


def test_a_critical_path_goes_through_a_union(tmp_path: Path) -> None:
    play = Play(SOURCES + UNITED, tmp_path)
    play.batch([visit(play, source, at) for source in ("web", "app") for at in (1, 30)], at_ms=T)
    windows = {row["operator"] for row in play.rows("operator_windows")}
    assert windows == {"web", "app", "visits", "all", "minutes", "board"}
    assert play.topology.upstreams["visits"] == ("web", "app")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('fields = "id string, v int,', 'fields = "id string, v bigint,'), "columns of web and app differ in v Int"),
        (('inputs = ["web", "app"]', "inputs = []"), "write inputs = "),
        (('inputs = ["web", "app"]', 'inputs = ["web", "now"]'), "mixes the table updates of now with a stream"),
    ],
)
def test_a_union_of_different_columns_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    now = operators(now=table("app"))
    toml = (SOURCES + now + UNITED).replace(*change, 1)
    with pytest.raises(InvalidSpec, match=said):
        Play(toml, tmp_path).start()
