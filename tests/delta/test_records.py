"""Handling of deletions, keep-alives, records without a key, and look-ups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from deltalake import write_deltalake

from support.play import Play
from support.topologies import (
    aggregate,
    current,
    join,
    map_of,
    operators,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from tidemark.model.tables.catalog import COUNTED

T = 1_400_000_000_000
SOURCE = topology_of(events=source(key="id"))

TOLD = operators(
    facts=source(topic="facts", key="who", fields="who string, fact string", timestamp=None),
    facts_now=table("facts", key=["who"]),
    told=join("events", "facts_now", on={"id": "who"}),
    all=sink("told", table="all_of_it"),
)


def event(play: Play, second: float, id_: str | None = "a", v: int | None = 1) -> dict[str, Any]:
    return play.row("events", T + round(second * 1000), key=id_, id=id_, v=v)


def gone(play: Play, second: float, id_: str) -> dict[str, Any]:
    """A record without a value: its key is gone."""
    return event(play, second, id_, None) | {"deleted": True}


def counts(play: Play, operator: str, sub: str | None = None) -> list[dict[str, int]]:
    rows = [row for row in play.rows("operator_batches", sub) if row["operator"] == operator]
    return [{word: row[word] for word in COUNTED if row[word]} for row in rows]


def test_a_deleted_key_is_deleted_downstream_as_one_change(tmp_path: Path) -> None:
    toml = SOURCE + operators(
        seen=map_of(select={"id": "id", "v": "v"}, where="v > 0"),
        now=table("seen"),
        current=current("now", "current"),
        all=sink("now", table="all_of_it"),
        by_v=repartition("now", id=["id"], key=["v"], columns=["id"]),
        per_v=aggregate("by_v", sub_topology="second", aggregates={"n": "count(*)"}),
        alarms=sink("now", topic="alerts"),
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a", 7), event(play, 2, "b", 7)], at_ms=T)
    play.batch([gone(play, 3, "a"), gone(play, 4, "nobody"), gone(play, 5, "a")], at_ms=T + 1000)
    play.hop("second", at_ms=T + 1000)
    assert [(row["id"], row["v"]) for row in play.rows("current")] == [("b", 7)]
    assert [(row["id"], row["deleted"]) for row in play.rows("all_of_it")] == [
        ("a", False),
        ("b", False),
        ("a", True),
    ]
    assert counts(play, "now")[1] == {"records_in": 3, "emitted": 1, "suppressed": 2}
    assert [(row["key"], row["value"]) for row in play.rows("changes", "second")] == [
        ("7", '{"n":1}'), ("7", '{"n":2}'), ("7", '{"n":1}'),
    ]  # fmt: skip
    assert [row["_deleted"] for _, row in play.broker.published] == [False, False, True]


def test_a_key_that_comes_back_is_a_change(tmp_path: Path) -> None:
    play = Play(SOURCE + operators(now=table(rule="value_only")), tmp_path)
    play.batch([event(play, 1), gone(play, 2, "a"), event(play, 3), event(play, 4)], at_ms=T)
    assert [row["value"] for row in play.rows("changes")] == [
        '{"v":1,"event_time":1400000001000}',
        None,
        '{"v":1,"event_time":1400000003000}',  # the event time alone is no change
    ]


def test_a_record_with_only_a_timestamp_only_advances_time(tmp_path: Path) -> None:
    play = Play(SOURCE + operators(all=sink("events", table="all_of_it")), tmp_path)
    play.batch([event(play, 1), event(play, 60, None, None)], at_ms=T)
    assert len(play.rows("all_of_it")) == 1
    assert counts(play, "events") == [{"records_in": 2, "filtered": 1, "passed": 1}]
    assert play.rows("batches")[-1]["watermark"] == T + 58_999
    assert play.rows("quarantine") == []


def test_a_null_key_column_is_quarantined_by_its_operator(tmp_path: Path) -> None:
    toml = SOURCE.replace('key = "id"\n', "") + operators(
        now=table(), per_id=aggregate(key=["id"], aggregates={"n": "count(*)"})
    )
    play = Play(toml, tmp_path)
    play.batch([play.row("events", T, key="k", id=None, v=3), event(play, 1)], at_ms=T)
    rows = play.rows("quarantine")
    assert sorted((row["source"], row["offset"], row["reason"]) for row in rows) == [
        ("now", 0, "null_key"),
        ("per_id", 0, "null_key"),
    ]
    assert rows[0]["value"] == b'{"id":null,"v":3,"event_time":1400000000000}'
    assert counts(play, "now") == [{"records_in": 2, "emitted": 1, "quarantined": 1}]
    assert counts(play, "per_id") == [{"records_in": 2, "emitted": 1, "quarantined": 1}]


def test_a_join_with_a_delta_table_sees_its_newest_version(tmp_path: Path) -> None:
    def names(rows: dict[str, str]) -> None:
        frame = pl.DataFrame({"who": list(rows), "name": list(rows.values())})
        write_deltalake(str(tmp_path / "reference" / "names"), frame.to_arrow(), mode="overwrite")

    toml = SOURCE + operators(
        named={"kind": "join", "input": "events", "delta": "reference/names", "on": {"id": "who"}},
        known={"kind": "join", "input": "events", "delta": "reference/names", "on": {"id": "who"}, "how": "inner"},
        all=sink("named", table="all_of_it"),
    )
    names({"a": "Ann"})
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a"), event(play, 2, "b")], at_ms=T)
    names({"a": "Anna", "b": "Bob"})
    play.batch([event(play, 3, "a"), event(play, 4, "b")], at_ms=T + 1000)
    assert [row["name"] for row in play.rows("all_of_it")] == ["Ann", None, "Anna", "Bob"]
    assert counts(play, "known") == [{"records_in": 2, "filtered": 1, "passed": 1}, {"records_in": 2, "passed": 2}]


def test_a_join_finds_no_row_of_a_key_deleted_by_then(tmp_path: Path) -> None:
    toml = SOURCE.replace("1 s", "10 s") + TOLD
    play = Play(toml, tmp_path)
    told = play.row("facts", T + 1000, key="a", who="a", fact="x")
    untold = play.row("facts", T + 3000, key="a", who="a") | {"deleted": True}
    play.batch([told, untold, event(play, 0.5), event(play, 2), event(play, 4)], at_ms=T)
    assert [row["fact"] for row in play.rows("all_of_it")] == [None, "x", None]
    play.start()
    play.batch([event(play, 2), event(play, 4)], at_ms=T + 1000)
    assert [row["fact"] for row in play.rows("all_of_it")][3:] == ["x", None]


def test_an_allowed_late_record_finds_the_row_valid_at_its_time(tmp_path: Path) -> None:
    toml = SOURCE + 'allowed_lateness = "10 s"\n' + TOLD
    play = Play(toml, tmp_path)
    facts = [play.row("facts", T + second * 1000, key="a", who="a", fact=fact) for second, fact in ((1, "x"), (8, "y"))]
    play.batch([*facts, event(play, 12)], at_ms=T)
    play.batch([play.row("facts", T + 9_000, key="a", who="a", fact="z"), event(play, 12)], at_ms=T + 1000)
    play.batch([event(play, 2)], at_ms=T + 2000)
    assert [row["fact"] for row in play.rows("all_of_it")] == ["y", "z", "x"]


def test_a_sink_of_current_rows_may_have_a_composite_key(tmp_path: Path) -> None:
    toml = SOURCE + operators(now=table(key=["id", "v"]))
    toml += operators(current=sink("now", table="current"))
    toml += 'mode = "current"\nrefresh = "0 s"\nkey = ["id", "v"]\n'
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a", 1), event(play, 2, "a", 2)], at_ms=T)
    play.batch([event(play, 3, "a", 2), event(play, 4, "b", None)], at_ms=T + 1000)
    rows = {(row["id"], row["v"], row["event_time"] - T) for row in play.rows("current")}
    # The table has only the event time beside its key, which is not compared.
    assert rows == {("a", 1, 1000), ("a", 2, 2000), ("b", None, 4000)}


def test_a_waiting_deletion_survives_a_restart(tmp_path: Path) -> None:
    toml = SOURCE + operators(
        now=table(columns=["v"], strategy="periodic", interval="10 s"), current=current("now", "current")
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1)], at_ms=T)
    play.batch(at_ms=T + 10_000)
    play.batch([gone(play, 2, "a")], at_ms=T + 11_000)
    play.start()
    play.batch(at_ms=T + 20_000)
    assert play.rows("current") == []
    assert [row["value"] for row in play.rows("changes")] == ['{"v":1}', None]
    before = len(play.rows("batches"))
    play.batch(at_ms=T + 30_000)
    assert len(play.rows("batches")) == before, "without a result there is nothing to repeat"


def test_updates_that_change_group_are_retracted_and_added(tmp_path: Path) -> None:
    toml = SOURCE + operators(
        by_v=repartition(id=["id"], key=["v"], columns=["id"]),
        per_v=aggregate("by_v", sub_topology="second", aggregates={"n": "count(*)"}),
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a", 7), event(play, 2, "b", 7), event(play, 3, "c", None)], at_ms=T)
    play.batch([event(play, 4, "a", None), event(play, 5, "c", 7), event(play, 6, "c", 7)], at_ms=T + 1000)
    play.hop("second", at_ms=T + 1000)
    assert [row["value"] for row in play.rows("changes", "second")][-1] == '{"n":2}', "b and c"
    assert [row["value"] for row in play.rows("changes", "second")] == [f'{{"n":{n}}}' for n in (1, 2, 1, 2)]


def test_an_update_without_a_match_deletes_the_joined_row(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "reference" / "prices"), pl.DataFrame({"which": [1], "price": [10]}).to_arrow())
    toml = SOURCE + operators(
        now=table(columns=["v"]),
        priced={"kind": "join", "input": "now", "delta": "reference/prices", "on": {"v": "which"}, "how": "inner"},
        current=current("priced", "current"),
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a", 1), event(play, 2, "b", 1)], at_ms=T)
    play.batch([event(play, 3, "a", 2)], at_ms=T + 1000)
    assert [(row["id"], row["price"]) for row in play.rows("current")] == [("b", 10)]


def test_a_key_and_a_time_make_a_record_without_other_columns(tmp_path: Path) -> None:
    toml = SOURCE.replace(", v int", "") + operators(all=sink("events", table="all_of_it"))
    play = Play(toml, tmp_path)
    play.batch([play.row("events", T + 1000, key="a", id="a")], at_ms=T)
    assert [row["id"] for row in play.rows("all_of_it")] == ["a"]


def test_a_table_with_a_boolean_key_restarts(tmp_path: Path) -> None:
    toml = SOURCE.replace("v int", "v int, on_sale boolean") + operators(
        now=table(key=["on_sale"], columns=["v"]),
        lately=map_of(select={"id": "id", "sale": "v > 1"}),
        told=join("lately", "now", on={"sale": "on_sale"}),
        all=sink("told", table="all_of_it"),
    )
    play = Play(toml, tmp_path)
    play.batch([event(play, 1, "a", 1) | {}, play.row("events", T + 1000, id="b", v=5, on_sale=True)], at_ms=T)
    play.start()
    play.batch([event(play, 2, "c", 9)], at_ms=T + 1000)
    assert [row["v"] for row in play.rows("all_of_it") if row["id"] == "c"] == [5]


def test_a_new_partition_that_falls_silent_keeps_its_time(tmp_path: Path) -> None:
    play = Play(SOURCE + operators(all=sink("events", table="all_of_it")), tmp_path)
    play.batch([event(play, 1), play.row("events", T + 9_000, partition=1, id="b", v=1)], at_ms=T)
    play.batch([event(play, 2)], at_ms=T + 1000)
    newest = {row["partition"]: row for row in play.rows("partition_batches") if row["source"] == "events"}
    assert newest[1]["watermark"] == T + 7_999
    assert play.reads()[1][1]["until_offset"] == 1


def test_records_without_keys_reach_operators_that_need_none(tmp_path: Path) -> None:
    toml = SOURCE.replace('key = "id"\n', "") + operators(
        now=table(),
        per_id=aggregate(key=["id"], aggregates={"n": "count(*)"}),
        board=sink("events", table="board"),
        out=sink("events", topic="out"),
        told=map_of(select={"v": "v"}, strategy="on_change"),
    )
    play = Play(toml, tmp_path, partitions=2)
    rows = [play.row("events", T + n, partition=n % 2, key=None, id="ab"[n % 2], v=n) for n in range(4)]
    alive = play.row("events", T + 9000, key=None, id=None, v=None)
    play.batch([*rows, alive], at_ms=T)
    assert [row["v"] for row in play.rows("board")] == [0, 2, 1, 3]
    assert [row["_key"] for _, row in play.broker.published] == [None] * 4
    assert counts(play, "events") == [{"records_in": 5, "filtered": 1, "passed": 4}]
    assert counts(play, "now") == counts(play, "per_id") == [{"records_in": 4, "emitted": 4}]
    assert counts(play, "told") == [{"records_in": 4, "quarantined": 4}], "it compares by the record's own key"
    assert {(row["source"], row["reason"]) for row in play.rows("quarantine")} == {("told", "null_key")}
    assert [task["n"] for task in play.tasks() if task["operator"] == "events"] == [2, 2]
