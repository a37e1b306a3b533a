"""A record that a topic refuses is quarantined for that sink alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, ms
from support.topologies import NEWEST_SENT
from tidemark.errors import InvalidSpec
from tidemark.kernels.records.limits import TopicLimits

HOUR_MS = 3_600_000
WIDE = NEWEST_SENT.replace("v int", "v int, note string").replace('columns = ["v"]', 'columns = ["v", "note"]')


def play_with(home: Path, limits: TopicLimits) -> Play:
    play = Play(WIDE, home)
    play.broker.topic_limits["out"] = limits
    return play


def row(play: Play, id_: str, second: float, note: str = "") -> Row:
    return play.row("events", ms(second), key=id_, id=id_, v=1, note=note)


def sent(play: Play) -> list[str]:
    return [record["id"] for topic, record in play.broker.published if topic == "out"]


def outcome(play: Play, operator: str) -> tuple[int, int, int]:
    rows = [r for r in play.rows("operator_batches") if r["operator"] == operator]
    return tuple(sum(r[word] for r in rows) for word in ("records_in", "passed", "quarantined"))  # type: ignore


@pytest.mark.parametrize(
    ("note", "second", "limits", "reason"),
    [
        ("x" * 3_000, 3, TopicLimits(max_bytes=2_048), "too_large_for_topic"),
        ("\x00" * 300, 3, TopicLimits(max_bytes=2_048), "too_large_for_topic"),  # six bytes each in JSON
        ("", 4_000, TopicLimits(after_ms=HOUR_MS), "time_refused_by_topic"),
        ("", -4_000, TopicLimits(before_ms=HOUR_MS), "time_refused_by_topic"),
    ],
)
def test_records_that_a_topic_would_refuse_are_quarantined(
    tmp_path: Path, note: str, second: float, limits: TopicLimits, reason: str
) -> None:
    play = play_with(tmp_path, limits)
    play.batch([row(play, "a", 1), row(play, "b", second, note), row(play, "c", 2)], at_ms=NOON)
    assert sent(play) == ["a", "c"]
    (bad,) = play.rows("quarantine")
    assert (bad["source"], bad["reason"], bad["offset"], bad["key"]) == ("out", reason, 1, b"b")
    assert b'"id":"b"' in bad["value"]
    assert sorted(r["id"] for r in play.rows("board")) == ["a", "b", "c"]
    assert (outcome(play, "out"), outcome(play, "board")) == ((3, 2, 1), (3, 3, 0))


def test_headers_count_and_a_record_at_the_limit_is_sent(tmp_path: Path) -> None:
    play = play_with(tmp_path, TopicLimits(max_bytes=2_048, after_ms=HOUR_MS, before_ms=HOUR_MS))
    large = [{"key": "trace", "value": b"t" * 2_000}]
    play.batch([{**row(play, "a", 1), "headers": large}, row(play, "b", 2, "x" * 1_400)], at_ms=NOON)
    play.batch([row(play, "c", 3_600)], at_ms=NOON)
    assert sent(play) == ["b", "c"]


def test_current_limits_apply_and_a_replay_sends_decided_rows(tmp_path: Path) -> None:
    play = play_with(tmp_path, TopicLimits())
    play.start(reached=crash_at("decided"))
    rows = [row(play, "a", 1), row(play, "b", 2, "x" * 3_000)]
    with pytest.raises(Crash):
        play.batch(rows, at_ms=NOON)
    play.broker.topic_limits["out"] = TopicLimits(max_bytes=1_024)
    play.start(epoch=2)
    play.batch(rows, at_ms=NOON)
    assert sent(play) == ["a", "b"]
    play.batch([row(play, "c", 3, "x" * 3_000)], at_ms=NOON)
    assert sent(play) == ["a", "b"]


@pytest.mark.parametrize("step", ["committed out", "measured", "committed undeliverable"])
def test_a_refusal_after_the_decision_is_one_row_on_replay_too(tmp_path: Path, step: str) -> None:
    play = Play(NEWEST_SENT, tmp_path)
    play.broker.refuses = lambda record: record["id"] == "b"
    rows = [play.row("events", ms(n), key=id_, id=id_, v=n) for n, id_ in enumerate("abc")]
    play.start(reached=crash_at(step))
    with pytest.raises(Crash):
        play.batch(rows, at_ms=NOON)
    play.start(epoch=2)
    play.batch(rows, at_ms=NOON)
    play.batch([play.row("events", ms(9), key="a", id="a", v=9)], at_ms=NOON)
    (row,) = play.rows("undeliverable")
    found = {name: row[name] for name in ("batch_id", "operator", "topic", "key", "source_offset", "error")}
    assert found == {
        "batch_id": 0,
        "operator": "out",
        "topic": "out",
        "key": b"b",
        "source_offset": 1,
        "error": "refused",
    }
    assert (row["value"], row["timestamp"]) == (b'{"id":"b","v":1}', ms(1))
    assert [record["id"] for _, record in play.broker.published][-1] == "a"


AVRO = """{"type": "record", "name": "sent", "fields": [
    {"name": "id", "type": "string"}, {"name": "note", "type": "string"}, {"name": "v", "type": "int"}]}"""


def test_records_that_do_not_fit_an_avro_schema_are_quarantined(tmp_path: Path) -> None:
    (tmp_path / "sent.avsc").write_text(AVRO)
    play = Play(f'{WIDE}format = "avro"\nschema = "{tmp_path}/sent.avsc"\n', tmp_path)
    rows = [row(play, "a", 1), play.row("events", ms(3), key="b", id="b", v=1, note=None), row(play, "c", 2)]
    play.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.batch(rows, at_ms=NOON)
    play.start(epoch=2)
    play.batch(rows, at_ms=NOON)
    assert sent(play) == ["a", "c"]
    (bad,) = play.rows("quarantine")
    assert (bad["source"], bad["reason"], bad["offset"], bad["key"]) == ("out", "does_not_fit_schema", 1, b"b")
    assert "operators.out.schema must fit its records" in bad["detail"]
    assert b'"id":"b"' in bad["value"]
    assert sorted(r["id"] for r in play.rows("board")) == ["a", "b", "c"]
    assert (outcome(play, "out"), outcome(play, "board")) == ((3, 2, 1), (3, 3, 0))
    play.batch([row(play, "d", 4)], at_ms=NOON)
    assert sent(play) == ["a", "c", "d"]


def test_rows_refused_by_a_changed_schema_are_undeliverable(tmp_path: Path) -> None:
    (tmp_path / "sent.avsc").write_text(AVRO)
    sink = f'{WIDE}format = "avro"\nschema = "{tmp_path}/sent.avsc"\n'
    play = Play(sink, tmp_path)
    rows = [row(play, "a", 1), row(play, "b", 2, "long"), row(play, "c", 3)]
    play.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.batch(rows, at_ms=NOON)
    only = '{"type": "enum", "name": "note", "symbols": ["none", "long"]}'
    (tmp_path / "sent.avsc").write_text(AVRO.replace('"note", "type": "string"', f'"note", "type": {only}'))
    changed = Play(sink, tmp_path)
    changed.start(reached=crash_at("measured"), epoch=2)
    with pytest.raises(Crash):
        changed.process(0, rows, at_ms=NOON)
    changed.start(epoch=3)
    changed.process(0, rows, at_ms=NOON)
    changed.process(1, [{**row(play, "d", 4, "none")}], at_ms=NOON)
    assert sent(changed) == ["b", "d"]  # what is carried out is not sent again
    bad = changed.rows("undeliverable")
    assert [(r["key"], r["value"], r["source_offset"]) for r in bad] == [
        (b"a", b'{"id":"a","v":1,"note":""}', 0), (b"c", b'{"id":"c","v":1,"note":""}', 2)
    ]  # fmt: skip
    assert all(r["error"].startswith("operators.out.schema must fit its records: ") for r in bad)
    assert [r["id"] for r in changed.rows("board")] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("schema", ['{"type": "record"', '{"type": "recor", "name": "sent"}', '"string"'])
def test_an_invalid_schema_is_refused_at_start(tmp_path: Path, schema: str) -> None:
    (tmp_path / "sent.avsc").write_text(schema)
    play = Play(f'{WIDE}format = "avro"\nschema = "{tmp_path}/sent.avsc"\n', tmp_path)
    with pytest.raises(InvalidSpec, match=r"operators.out.schema: is not an Avro schema of records"):
        play.start()
