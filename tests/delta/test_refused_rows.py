"""Rows that the table of a sink refuses are set aside, and the others are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from support.crashes import Crash, crash_at
from support.play import Play, ms
from support.separate_executors import Apart
from support.topologies import current, map_of, operators, sink, source, table, topology_of
from tidemark.storage.delta.requirements import TableRefused
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, findings

APPEND = topology_of(
    events=source("id string, v int"), kept=map_of(select={"id": "id", "v": "v"}), out=sink("kept", table="out")
)
CURRENT = topology_of(
    events=source("id string, v int"), latest=table("events", columns=["v"]), out=current("latest", "out")
)
OTHER_READER = operators(kept=map_of("latest", select={"v": "v"}), log=sink("kept", table="log"))
POSITIVE = {"positive": "v > 0"}
REFUSED = "table out: constraint positive (v > 0) refuses v = "


def constrain(play: Play, constraints: dict[str, str], *, name: str = "out") -> None:
    DeltaTable(str(play.table(name))).alter.add_constraint(constraints)


def require_values(play: Play, column: str) -> None:
    """Makes *column* of the sink's table NOT NULL, as ALTER TABLE does."""
    path = play.table("out")
    schema = json.loads(DeltaTable(str(path)).schema().to_json())
    for field in schema["fields"]:
        field["nullable"] = field["nullable"] and field["name"] != column
    metadata = next(
        action["metaData"]
        for file in sorted((path / "_delta_log").glob("*.json"), reverse=True)
        for action in map(json.loads, file.read_text().splitlines())
        if "metaData" in action
    )
    version = DeltaTable(str(path)).version() + 1
    action = {"metaData": {**metadata, "schemaString": json.dumps(schema)}}
    (path / "_delta_log" / f"{version:020d}.json").write_text(json.dumps(action))


def send(play: Play, second: int, *values: tuple[str | None, int | None]) -> None:
    rows = [play.row("events", ms(second), id=id_, v=v) for id_, v in values]
    play.batch(rows, at_ms=ms(second))


def rows_of(play: Play, name: str = "out") -> list[tuple[Any, Any]]:
    return sorted(((row["id"], row["v"]) for row in play.rows(name)), key=str)


def refused(play: Play) -> list[tuple[str, int, str]]:
    return [(row["operator"], row["source_offset"], row["error"]) for row in play.rows("undeliverable")]


def counts(play: Play, operator: str) -> list[dict[str, int]]:
    names = ("records_in", "emitted", "suppressed", "passed")
    rows = [row for row in play.rows("operator_batches") if row["operator"] == operator]
    return [{name: row[name] for name in names if row[name]} for row in rows]


def test_a_refused_row_of_an_append_sink_is_undeliverable(tmp_path: Path) -> None:
    play = Play(APPEND, tmp_path)
    send(play, 0, ("a", 1))
    constrain(play, POSITIVE)
    send(play, 1, ("b", -1), ("c", 2), ("d", None))
    assert rows_of(play) == [("a", 1), ("c", 2)]
    assert refused(play) == [("out", 1, f"{REFUSED}-1"), ("out", 3, f"{REFUSED}null")]
    first = play.rows("undeliverable")[0]
    assert (first["key"], first["value"], first["timestamp"]) == (b"k", b'{"id":"b","v":-1}', ms(1))
    # The table refuses all rows of this batch.
    send(play, 2, ("e", 0))
    assert (rows_of(play), len(refused(play))) == ([("a", 1), ("c", 2)], 3)
    require_values(play, "id")
    send(play, 3, (None, 3), ("f", 4))
    assert rows_of(play) == [("a", 1), ("c", 2), ("f", 4)]
    assert refused(play)[3:] == [("out", 5, "table out: column id (`id` IS NOT NULL) refuses id = null")]


def test_large_batches_are_checked_before_their_rows_are_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", 2)
    play = Play(APPEND, tmp_path)
    send(play, 0, ("a", 1))
    constrain(play, POSITIVE)
    send(play, 1, ("b", -1), ("c", -2), ("d", 3), ("e", 4))
    assert rows_of(play) == [("a", 1), ("d", 3), ("e", 4)]
    assert refused(play) == [("out", 1, f"{REFUSED}-1"), ("out", 2, f"{REFUSED}-2")]


def test_a_key_keeps_its_last_accepted_row_and_later_updates_are_compared_with_it(tmp_path: Path) -> None:
    play = Play(CURRENT, tmp_path)
    send(play, 0, ("a", 5), ("b", 5))
    constrain(play, POSITIVE)
    send(play, 1, ("a", -1), ("b", 6))
    assert rows_of(play) == [("a", 5), ("b", 6)]
    send(play, 2, ("a", -1))
    assert refused(play) == [("out", 2, f"{REFUSED}-1"), ("out", 4, f"{REFUSED}-1")]
    send(play, 3, ("a", 5))  # the value that the table has
    send(play, 4, ("a", 7))
    assert rows_of(play) == [("a", 7), ("b", 6)]
    assert counts(play, "latest") == [
        {"records_in": 2, "emitted": 2}, {"records_in": 2, "emitted": 2}, {"records_in": 1, "emitted": 1},
        {"records_in": 1, "suppressed": 1}, {"records_in": 1, "emitted": 1},
    ]  # fmt: skip
    # Without the constraint the table gets the value that it refused before.
    send(play, 5, ("a", -2))
    DeltaTable(str(play.table("out"))).alter.drop_constraint("positive")
    send(play, 6, ("a", -2))
    assert rows_of(play) == [("a", -2), ("b", 6)]


def test_a_refused_update_does_not_leave_another_reader_with_an_old_value(tmp_path: Path) -> None:
    play = Play(CURRENT + OTHER_READER, tmp_path)
    send(play, 0, ("a", 5))
    constrain(play, POSITIVE)
    for second, v in enumerate((-1, 5, -1), start=1):
        send(play, second, ("a", v))
    assert rows_of(play) == [("a", 5)]
    assert [row["v"] for row in play.rows("log")] == [5, -1, 5, -1]


def test_a_key_whose_row_was_refused_can_be_deleted(tmp_path: Path) -> None:
    play = Play(CURRENT, tmp_path)
    send(play, 0, ("a", 5))
    constrain(play, POSITIVE)
    send(play, 1, ("a", -1))
    require_values(play, "v")
    play.batch([{**play.row("events", ms(2), id="a"), "deleted": True}], at_ms=ms(2))
    assert rows_of(play) == []
    send(play, 3, ("a", 8))
    assert rows_of(play) == [("a", 8)]


@pytest.mark.parametrize("many", [5_000, 1])
@pytest.mark.parametrize("toml", [APPEND, CURRENT])
def test_a_constraint_that_comes_after_the_decision_refuses_only_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, many: int
) -> None:
    monkeypatch.setattr("tidemark.stream.write.commit.MANY", many)
    play = Play(toml, tmp_path)
    send(play, 0, ("a", 5))
    crash(play, "decided", 1, ("a", -1), ("b", 6))
    constrain(play, POSITIVE)
    # The second driver dies between the commits of the sink and of the rows that it refused.
    committed = "committed out" if toml == APPEND else "committed changes_of_out"
    again(play, crash_at(committed))
    # What was refused is known although the constraint is another one by then.
    DeltaTable(str(play.table("out"))).alter.drop_constraint("positive")
    resumed = Play(toml, tmp_path)
    resumed.resume({"events": 2}, {("events", 0): 3})
    resumed.process(1, [], at_ms=ms(1))
    # The refused value does not suppress an equal one, though a driver decides that did not see the refusal.
    resumed.start()
    send(resumed, 2, ("c", -7), ("a", -1))
    earlier = [("a", 5)] if toml == APPEND else []
    assert sorted(rows_of(resumed)) == sorted([*earlier, ("a", -1), ("b", 6), ("c", -7)])
    assert refused(resumed) == [("out", 1, f"{REFUSED}-1")]


def test_a_merge_leaves_out_rows_that_the_table_refuses_by_then(tmp_path: Path) -> None:
    play = Play(CURRENT.replace('refresh = "0 s"', 'refresh = "1 h"'), tmp_path)
    send(play, 0, ("a", 5))
    play.settle()
    send(play, 1, ("a", 6), ("b", 7))
    send(play, 2, ("a", -1))
    constrain(play, POSITIVE)
    play.settle()
    assert rows_of(play) == [("a", 6), ("b", 7)]
    assert refused(play) == [("out", 3, f"{REFUSED}-1")]
    send(play, 3, ("a", -1))
    assert refused(play) == [("out", 3, f"{REFUSED}-1"), ("out", 4, f"{REFUSED}-1")]


def crash(play: Play, step: str, second: int, *values: tuple[str, int]) -> None:
    play.start(reached=crash_at(step))
    with pytest.raises(Crash):
        send(play, second, *values)


def again(play: Play, reached: Callable[[str], None]) -> None:
    play.start(reached=reached)
    with pytest.raises(Crash):
        play.process(1, [], at_ms=ms(1))


def test_rows_are_refused_in_shards(tmp_path: Path) -> None:
    play = Play(CURRENT, tmp_path).in_shards(2, Apart)
    send(play, 0, *((id_, 5) for id_ in "abcd"))
    constrain(play, POSITIVE)
    send(play, 1, ("a", -1), ("b", -1), ("c", 6), ("d", -1))
    send(play, 2, ("a", -1))
    assert rows_of(play) == [("a", 5), ("b", 5), ("c", 6), ("d", 5)]
    assert sorted(offset for _, offset, _ in refused(play)) == [4, 5, 7, 8]


def test_a_constraint_that_cannot_be_evaluated_refuses_the_start(tmp_path: Path) -> None:
    play = Play(APPEND, tmp_path)
    send(play, 0, ("a", 1))
    constrain(play, {"odd": "v % 2 = 1"})
    told = r"out: the constraint odd \(v % 2 = 1\) cannot be evaluated: .*; ALTER TABLE \S+ DROP CONSTRAINT odd; or "
    for act in (lambda: send(play, 1, ("b", 1)), play.start):
        with pytest.raises(TableRefused, match=told):
            act()
    assert play.engine(play.sub).reached[0] == 0
    (finding,) = [f for f in findings(evidence(play.stream(play.sub))) if f.fault is not Fault.CHECKPOINT_GONE]
    assert finding.fault is Fault.TABLE_REFUSED
    DeltaTable(str(play.table("out"))).alter.drop_constraint("odd")
    # Constraints of Tidemark's own tables would take rows from its readers.
    constrain(play, {"few": "batch_id < 9"}, name="changes")
    with pytest.raises(
        TableRefused, match="only tables of sinks may have constraints, and this one has the constraint few"
    ):
        send(play, 1, ("b", 1))
