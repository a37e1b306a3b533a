"""SQL that fails for a record quarantines only that record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.crashes import Crash, crash_at
from support.play import NOON, Play
from support.separate_executors import Apart
from support.topologies import aggregate, map_of, operators, repartition, sink, source, table, topology_of
from tidemark.model.tables.catalog import BECAME, CAME_IN

SOURCE = topology_of(events=source("id string, v bigint, t string"))
MAPPED = operators(
    mapped=map_of(select={"id": "id", "double": "v * 2", "day": "t::date"}, where="t::date < '2030-01-01'")
)
NEWEST = operators(newest=table("mapped"), out=sink("newest", table="out"))
TOLD = operators(told=map_of(select={"v": "v"}, strategy="on_change", identity="v * 2"))
TOTALS = operators(
    totals=aggregate(key=["id"], aggregates={"total": "sum(v)"}, select={"total": "total"}),
    out=sink("totals", table="out"),
)
LARGE, MOST = 2**62, 2**63 - 1


def event(play: Play, number: int, id_: str, v: int, t: str = "2026-01-01") -> dict[str, Any]:
    return play.row("events", NOON + number, id=id_, v=v, t=t)


def quarantined(play: Play, sub: str | None = None) -> list[tuple[str, int, str, str]]:
    return [(row["source"], row["offset"], row["reason"], row["detail"]) for row in play.rows("quarantine", sub)]


def check_accounting(play: Play) -> None:
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row


def some(play: Play) -> list[dict[str, Any]]:
    return [
        event(play, 1, "a", 1), event(play, 2, "b", LARGE), event(play, 3, "c", 3, "soon"),
        event(play, 4, "d", LARGE, "2031-01-01"), event(play, 5, "e", 5),
    ]  # fmt: skip


def test_only_the_record_whose_sql_fails_is_quarantined(tmp_path: Path) -> None:
    play = Play(SOURCE + MAPPED + NEWEST, tmp_path)
    play.batch(some(play), at_ms=NOON)
    play.batch([event(play, 6, "a", 7)], at_ms=NOON + 1_000)
    assert [(row["id"], row["double"]) for row in play.rows("out")] == [("a", 2), ("e", 10), ("a", 14)]
    (b, c) = quarantined(play)
    assert b[:3] == ("mapped", 1, "sql_error")
    assert b[3].startswith("select.double: Out of Range Error: Overflow in multiplication of INT64")
    assert c[:3] == ("mapped", 2, "sql_error")
    assert c[3].startswith("where: Conversion Error: invalid date field format")
    row = play.rows("quarantine")[0]
    assert json.loads(row["value"]) == {"id": "b", "v": LARGE, "t": "2026-01-01", "event_time": NOON + 2}
    (mapped, _) = [row for row in play.rows("operator_batches") if row["operator"] == "mapped"]
    assert (mapped["records_in"], mapped["passed"], mapped["filtered"], mapped["quarantined"]) == (5, 2, 1, 2)
    check_accounting(play)


OUT_OF_YEARS = operators(
    mapped=map_of(
        where="v < 11",
        select={
            "id": "id",
            "a": "if(v = 1, 'infinity', t)::timestamptz",
            "b": "if(v = 2, '-infinity', t)::date",
            "c": "if(v = 3, '290000-01-01', t)::timestamp",
            "d": "if(v = 4, '10000-01-01', t)::date",
            "e": "[t::timestamptz, if(v = 5, '0001-12-31 (BC)', t)::timestamptz]",
            "f": "{'at': [if(v = 6, 'infinity', t)::date]}",
            "g": "if(v = 7, 'infinity', t)::timestamp_s",
            "h": "{'at': [t::timestamp_s, if(v = 8, '-infinity', t)::timestamp_s]}",
            "i": "if(v = 9, 'infinity', t)::timestamp_ms",
        },
    )
)


def test_a_time_in_a_year_without_a_text_form_is_quarantined(tmp_path: Path) -> None:
    play = Play(SOURCE + OUT_OF_YEARS + NEWEST, tmp_path)
    rows = [event(play, v, f"id{v}", v) for v in range(1, 11)] + [event(play, 11, "id11", 11, "infinity")]
    play.batch(rows, at_ms=NOON)
    play.start()
    play.batch([event(play, 12, "id1", 10)], at_ms=NOON + 1_000)
    assert [row["id"] for row in play.rows("out")] == ["id10", "id1"]
    says = "a time outside of the years 1 to 9999"
    assert quarantined(play) == [("mapped", n, "sql_error", f"select.{c}: {says}") for n, c in enumerate("abcdefghi")]
    check_accounting(play)


def test_a_failing_identity_quarantines_its_record(tmp_path: Path) -> None:
    play = Play(SOURCE + TOLD, tmp_path)
    play.batch([event(play, 1, "a", 1), event(play, 2, "a", LARGE), event(play, 3, "a", 1)], at_ms=NOON)
    (row,) = quarantined(play)
    assert row[:3] == ("told", 1, "sql_error")
    assert row[3].startswith("identity: Out of Range Error")
    check_accounting(play)


SUM = "aggregates.total: the sum needs more than 64 bits; sum up doubles instead"
WINDOWED: dict[str, Any] = {
    "none": {},
    "tumbling": {"window": {"tumbling": "10 s"}},
    "hopping": {"window": {"hopping": "10 s", "every": "5 s"}},
    "session": {"window": {"session": "5 s"}},
}


def totals_of(windows: str, strategy: str) -> str:
    """Returns a topology with the sum and the number of values of each id."""
    keys = WINDOWED[windows] | {"strategy": strategy} | ({"interval": "1 min"} if strategy == "periodic" else {})
    values = {"total": "sum(v)", "n": "count(*)"}
    totals = aggregate(key=["id"], aggregates=values, select={"total": "total", "n": "n"}, **keys)
    return SOURCE + operators(totals=totals, out=sink("totals", table="out"))


def sums(play: Play) -> None:
    """Plays sums with one record too much in the first batch, and two in the second, after a new start."""
    first = [(1, "a", 5), (2, "a", MOST), (3, "b", 1), (4, "a", -2), (5, "b", MOST - 1), (6, "b", 1)]
    second = [(7, "a", -MOST), (8, "a", -MOST), (9, "b", -3), (9, "a", 4)]
    play.batch([event(play, second_ * 1_000, id_, v) for second_, id_, v in first], at_ms=NOON + 10_000)
    play.start()
    play.batch([event(play, second_ * 1_000, id_, v) for second_, id_, v in second], at_ms=NOON + 20_000)
    # It closes all windows of the others, and ends their intervals.
    play.batch([event(play, 100_000, "z", 0)], at_ms=NOON + 200_000)


@pytest.mark.parametrize(
    ("windows", "strategy"), [("none", "on_change"), ("tumbling", "periodic"), ("session", "on_window_close")]
)
def test_a_record_whose_sum_does_not_fit_leaves_the_state_as_it_was(
    tmp_path: Path, windows: str, strategy: str
) -> None:
    play = Play(totals_of(windows, strategy), tmp_path)
    sums(play)
    newest = {row["id"]: (row["total"], row["n"]) for row in play.rows("out") if row["id"] != "z"}
    assert newest == {"a": (7 - MOST, 4), "b": (MOST - 3, 3)}
    assert quarantined(play) == [("totals", offset, "sql_error", SUM) for offset in (1, 5, 7)]
    check_accounting(play)


def test_updates_of_hopping_windows_are_refused_one_by_one(tmp_path: Path) -> None:
    play = Play(totals_of("hopping", "on_change"), tmp_path)
    sums(play)
    newest = {(row["id"], (row["window_start"] - NOON) // 1_000): row["total"] for row in play.rows("out")}
    # In -5 to 5 s: 5, MOST (refused), -2 and 1. In 0 to 10 s: all. In 5 to 15 s: of a -MOST, -MOST (fits not), 4.
    assert {key: total for key, total in newest.items() if key[0] != "z"} == {
        ("a", -5): 3, ("b", -5): 1, ("a", 0): 7 - MOST, ("b", 0): MOST - 3, ("a", 5): 4 - MOST, ("b", 5): MOST - 3,
    }  # fmt: skip
    check_accounting(play)


@pytest.mark.parametrize("windows", ["none", "session"])
def test_shards_and_replay_refuse_the_same_sums(tmp_path: Path, windows: str) -> None:
    toml = totals_of(windows, "on_change")
    alone = Play(toml, tmp_path / "alone")
    sums(alone)
    crashed, again = (Play(toml, tmp_path / "several").in_shards(2, Apart) for _ in range(2))
    crashed.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        sums(crashed)
    again.start(epoch=2)
    sums(again)
    columns = [column for column in alone.rows("out")[0] if column not in {"epoch", "seq"}]
    both = [sorted([row[column] for column in columns] for row in play.rows("out")) for play in (alone, again)]
    assert both[0] == both[1]
    assert sorted(quarantined(again)) == sorted(quarantined(alone))
    check_accounting(again)


def test_a_sum_of_updates_is_hidden_until_what_does_not_fit_is_replaced(tmp_path: Path) -> None:
    """The state has a value that is replaced later: otherwise it would be taken away without having been added."""
    grouped = operators(
        newest=table(columns=["v", "t"]),
        by_day=repartition("newest", id=["id"], key=["t"], columns=["v"], partitions=1),
        totals=aggregate("by_day", aggregates={"total": "sum(v)"}, select={"total": "total"}),
        out=sink("totals", table="out"),
    )
    play = Play(SOURCE + grouped, tmp_path)
    sub = play.topology.sub_topologies[1].name
    for number, (id_, v) in enumerate((("a", MOST), ("b", 5), ("c", -1), ("b", -2))):
        play.batch([event(play, number, id_, v)], at_ms=NOON + number * 1_000)
        play.hop(sub, at_ms=NOON + number * 1_000)
    assert [row["total"] for row in play.rows("out", sub)] == [MOST, MOST - 3]
    assert [row[:3] for row in quarantined(play, sub)] == [("totals", 1, "sql_error"), ("totals", 2, "sql_error")]
    check_accounting(play)


@pytest.mark.parametrize("strategy", ["periodic", "on_change"])
def test_a_failing_result_is_quarantined_once(tmp_path: Path, strategy: str) -> None:
    more = f'strategy = "{strategy}"\n' + ('interval = "10 s"\n' if strategy == "periodic" else "")
    totals = TOTALS.replace('select = { total = "total" }\n', 'select = { total = "total * 2" }\n' + more)
    play = Play(SOURCE + totals, tmp_path)
    play.batch([event(play, 1, "a", LARGE), event(play, 2, "b", 1)], at_ms=NOON)
    for second in (11, 21, 31):
        play.batch([], at_ms=NOON + second * 1_000)
    assert {row["total"] for row in play.rows("out")} == {2}
    assert [row[:3] for row in quarantined(play)] == [("totals", 0, "sql_error")]
    check_accounting(play)


def test_the_same_records_are_quarantined_after_a_crash(tmp_path: Path) -> None:
    undisturbed, crashed = (Play(SOURCE + MAPPED + NEWEST, tmp_path / name) for name in ("undisturbed", "crashed"))
    undisturbed.batch(some(undisturbed), at_ms=NOON)
    rows = some(crashed)
    crashed.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        crashed.process(0, rows, at_ms=NOON)
    crashed.start()
    crashed.process(0, rows, at_ms=NOON)
    assert quarantined(crashed) == quarantined(undisturbed)
    assert crashed.rows("out") == undisturbed.rows("out")
