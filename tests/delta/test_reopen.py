"""`tidemark requeue --late --reopen`: closed windows process late records once."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, ms
from support.topologies import aggregate, current, operators, repartition, sink
from tidemark.cli.repair.requeue import add_options, requeue_plan
from tidemark.clock import wall_clock_ms
from tidemark.control.folder import TimeReset, WindowReopening
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.maintenance.upkeep import maintain_stream
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import utc
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import BECAME, CAME_IN
from tidemark.storage.delta.tables import scan
from tidemark.stream.journal.entries import Journal
from tidemark.trace.outcomes import RecordPosition
from tidemark.trace.record import Tracer
from tidemark.why.walk import why

EVENTS = """
name = "play"
[retention]
changes = "1 ms"
state = "1 ms"
unused = "1 ms"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
"""
COUNTS = operators(
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, reopen_for="1 min", aggregates={"n": "count(*)"}),
    board=current("counts", "board", key=["id", "window_start"]),
)
TOPS = operators(
    tops=aggregate(
        key=["id"],
        window={"tumbling": "10 s"},
        reopen_for="1 min",
        strategy="on_window_close",
        aggregates={"top": "max(v)"},
    ),
    top_board=sink("tops", table="top_board"),
)
VISITS = operators(visits=aggregate(key=["id"], window={"session": "3 s"}, aggregates={"n": "count(*)"}))
BOTH = EVENTS + COUNTS + TOPS


def event(play: Play, second: float, v: int = 1, id_: str = "a") -> Row:
    return play.row("events", ms(second), key=id_, id=id_, v=v)


def closed(toml: str, home: Path, *late: tuple[float, int]) -> Play:
    """Closes the window from 0 s, then sends *late* records.

    It has v = 5 and v = 3 of a; the watermark is at 23.999 s.
    """
    play = Play(toml, home)
    play.batch([event(play, 1, 5), event(play, 2, 3)], at_ms=ms(3))
    play.batch([event(play, 25)], at_ms=ms(26))
    play.batch([event(play, *each) for each in late], at_ms=ms(27))
    return play


def ask(play: Play, *more: str) -> str:
    parser = argparse.ArgumentParser()
    add_options(parser)
    said = parser.parse_args(["play", "--late", "--reopen", *more])
    plan = requeue_plan(said, play.home, None, lambda: ms(100), lambda _: play.topology)
    return plan.effect if said.dry_run else plan.apply()


def results(play: Play, operator: str, start_s: int = 0) -> list[str]:
    rows = [row for row in play.rows("changes") if row["operator"] == operator]
    return [row["value"] for row in rows if row["window_start"] == NOON + start_s * 1_000]


def board(play: Play, table: str, column: str) -> list[tuple[float, int]]:
    """Returns window start in seconds and result, in the sink's order."""
    return [((row["window_start"] - NOON) / 1_000, row[column]) for row in play.rows(table)]


def counted(play: Play, operator: str, word: str) -> list[tuple[int, int]]:
    for row in play.rows("operator_batches"):
        assert sum(row[c] for c in CAME_IN) == sum(row[c] for c in BECAME), row
    return [(r["batch_id"], r[word]) for r in play.rows("operator_batches") if r["operator"] == operator and r[word]]


def test_a_reopened_window_counts_its_late_records(tmp_path: Path) -> None:
    play = closed(BOTH, tmp_path, (4, 9), (6, 2))
    assert ask(play, "--dry-run").splitlines()[0].startswith("counts: 2 of 2 late records would be taken in again")
    assert ask(play) == "\n".join(
        f"{name}: 2 of 2 late records are taken in again with the next batch of events" for name in ("counts", "tops")
    )
    play.batch(at_ms=ms(28))
    play.batch([event(play, 26)], at_ms=ms(29))
    assert results(play, "counts") == ['{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}']
    assert results(play, "tops") == ['{"top":5}', '{"top":9}']
    changes = [row for row in play.rows("changes") if row["batch_id"] == 3]
    assert sorted((r["operator"], (r["old_timestamp"] - NOON) / 1_000) for r in changes) == [
        ("counts", 2), ("counts", 4), ("tops", 9.999),
    ]  # fmt: skip
    assert board(play, "board", "n") == [(0, 4), (20, 2)]
    assert board(play, "top_board", "top") == [(0, 5), (0, 9)]
    assert counted(play, "counts", "late") == [(2, 2)]
    assert counted(play, "counts", "reopened") == counted(play, "tops", "reopened") == [(3, 2)]
    # 2 records, 1, 2 late ones, these 2 again, and 1
    told = [finding.seen for finding in why(play.topology, Layout(play.home), at_ms=ms(30), operator="counts")]
    of = "of the 8 updates that it got in its last 5 batches"
    assert f"2 {of} were late, and closed windows processed them again" in told
    measured = {r["operator"] for r in play.rows("operator_batches") if r["batch_id"] == 3 and r["n"]}
    assert measured == set(), "how late a window was reopened is no latency of the stream"


def test_a_trace_shows_that_a_late_record_was_taken_in_again(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 9))
    ask(play)
    play.batch(at_ms=ms(28))
    tracer = Tracer(play.topology, Layout(play.home), lambda source, partition, offsets: None)
    results = [(r.operator, r.batch_id, r.outcome.value) for r in tracer.trace(RecordPosition("events", 0, 3)).results]
    assert results == [("events", 2, "passed"), ("counts", 2, "late"), ("counts", 3, "emitted"), ("board", 3, "passed")]


def test_why_counts_late_records_that_windows_recovered(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 9), (6, 2))
    ask(play)
    play.batch(at_ms=ms(28))
    play.batch([event(play, 5), *(event(play, 3) for _ in range(5))], at_ms=ms(29))
    finding = why(play.topology, Layout(play.home), at_ms=ms(30), operator="counts")[0]
    # 2 records, 1, 2 late ones, these 2 again, and 6 late ones
    assert finding.cause == "bound_too_small"
    assert finding.seen.startswith("8 of the 13 records of its last 5 batches were late")
    assert finding.seen.endswith("; 2 late records were processed again by closed windows")
    again = "`tidemark requeue play --late --reopen --operator counts` adds them to closed windows"
    assert f"requeued those that were sent or processed again; {again}" in finding.remedy


def test_a_late_record_is_recovered_only_once(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 1))
    ask(play)
    again = "counts: 0 of 1 late records are taken in again with the next batch of events"
    assert ask(play) == again, "before the driver has read the first request"
    play.batch(at_ms=ms(28))
    assert ask(play) == again
    play.batch(at_ms=ms(29))
    assert results(play, "counts") == ['{"n":1}', '{"n":2}', '{"n":3}']
    path = Layout(play.home).report_table("play", "requeued")
    parser = argparse.ArgumentParser()
    add_options(parser)
    to_topic = requeue_plan(parser.parse_args(["play", "--late"]), play.home, None, described=lambda _: play.topology)
    assert to_topic.effect == "0 of 0 records would be sent again"
    assert path.exists()


def test_a_correction_that_changes_nothing_is_suppressed(tmp_path: Path) -> None:
    play = closed(BOTH, tmp_path, (1.5, 4))
    ask(play, "--operator", "tops")
    play.batch(at_ms=ms(28))
    assert results(play, "tops") == ['{"top":5}']
    assert results(play, "counts") == ['{"n":1}', '{"n":2}']
    assert counted(play, "tops", "suppressed") == [(3, 1)]
    assert [(r["key"], r["n"], r["first_offset"]) for r in play.rows("suppressed")] == [
        (f'{{"id":"a","window_start":{NOON}}}', 1, 3)
    ]


@pytest.mark.parametrize("step", ["decided", "committed changes", "committed state_changes"])
def test_a_reopening_is_done_once_when_its_batch_is_run_again(tmp_path: Path, step: str) -> None:
    play = closed(BOTH, tmp_path, (4, 9))
    ask(play)
    play.start(reached=crash_at(step))
    with pytest.raises(Crash):
        play.process(3, [], at_ms=ms(28))
    play.start(epoch=2)
    play.process(3, [], at_ms=ms(28))
    play.start(epoch=3)
    play.process(4, [event(play, 26)], at_ms=ms(29))
    assert results(play, "counts") == ['{"n":1}', '{"n":2}', '{"n":3}']
    assert results(play, "tops") == ['{"top":5}', '{"top":9}']


def test_closed_windows_outlive_maintenance_and_a_restart(tmp_path: Path) -> None:
    play = closed(BOTH, tmp_path, (4, 9))
    play.batch([event(play, 60)], at_ms=ms(61))
    (sub,) = play.topology.sub_topologies
    stream = Stream(play.topology, sub, Layout(play.home))
    maintain_stream(stream, now_ms=wall_clock_ms() + 10_000, closed_after_ms=0)
    play.start(epoch=2)
    play.batch([event(play, 61)], at_ms=ms(62))
    ask(play)
    play.start(epoch=3)
    play.batch(at_ms=ms(63))
    newest = [row for row in play.rows("changes") if row["batch_id"] == 5]
    assert sorted((row["operator"], row["value"]) for row in newest) == [("counts", '{"n":3}'), ("tops", '{"top":9}')]
    assert all(row["old_timestamp"] is not None for row in newest), "what was sent on is known"


def test_a_closed_window_sends_corrections_and_no_repetitions(tmp_path: Path) -> None:
    periodic = EVENTS + TOPS.replace('"on_window_close"', '"periodic"\ninterval = "10 s"')
    play = closed(periodic, tmp_path, (4, 9))
    play.batch(at_ms=ms(41))
    ask(play)
    play.batch(at_ms=ms(42))
    play.batch(at_ms=ms(51))
    assert board(play, "top_board", "top") == [(0, 5), (20, 1), (20, 1), (0, 9), (20, 1)]


def test_windows_downstream_of_a_hop_are_reopened(tmp_path: Path) -> None:
    hop = operators(by_id=repartition(key=["id"], columns=["v"], partitions=4))
    behind = COUNTS.replace('input = "events"\nkey = ["id"]', 'sub_topology = "second"\ninput = "by_id"')
    play = closed(EVENTS + hop + behind, tmp_path)
    play.hop("second", at_ms=ms(27))
    play.batch([event(play, 4)], at_ms=ms(28))
    play.hop("second", at_ms=ms(29))
    assert ask(play) == "counts: 1 of 1 late records are taken in again with the next batch of second"
    play.hop("second", at_ms=ms(30))
    (late,) = play.rows("late_records", "second")
    assert late["task"] != late["partition"] == 0
    values = [row["value"] for row in play.rows("changes", "second") if row["window_start"] == NOON]
    assert values == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_a_completed_request_is_removed(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 1))
    control = play.control
    ask(play)
    (asked,) = control.home.glob("reopen_*.json")
    play.start(reached=crash_at("decided"))
    with pytest.raises(Crash):
        play.batch(at_ms=ms(28))
    assert asked.exists()
    play.start(epoch=2)
    play.batch(at_ms=ms(28))
    assert asked.exists(), "until a batch after it"
    play.batch([event(play, 26)], at_ms=ms(29))
    assert list(control.home.glob("reopen_*")) == []
    assert ask(play) == "counts: 0 of 1 late records are taken in again with the next batch of events"
    play.batch([event(play, 27)], at_ms=ms(30))
    assert results(play, "counts") == ['{"n":1}', '{"n":2}', '{"n":3}']
    newest = Journal(control.home / "journal", "data").newest()
    assert newest is not None
    assert newest.notes.decision.progress.reopened == {}


def test_a_request_is_kept_until_its_records_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 1))
    control = play.control
    with monkeypatch.context() as killed:
        killed.setattr("tidemark.cli.repair.reopen.append", lambda *_: crash_at("written")("written"))
        with pytest.raises(Crash):
            ask(play)
    for second in (28, 29):
        play.batch([event(play, second)], at_ms=ms(second))
    assert len(control.reopenings()) == 1
    assert ask(play).startswith("counts: 0 of 1 late records")
    play.batch([event(play, 30)], at_ms=ms(30))
    assert control.reopenings() == []
    rows = scan(Layout(play.home).report_table("play", "requeued")).collect()
    assert rows.select("source", "partition", "offset", "late_batch").rows() == [("counts", 0, 3, 2)]
    assert results(play, "counts") == ['{"n":1}', '{"n":2}', '{"n":3}']


def test_windows_longer_closed_than_reopen_for_are_refused(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 1), (12, 1))
    play.batch([event(play, 71)], at_ms=ms(72))  # the window from 0 s is forgotten, which closed a minute ago
    said = ask(play).splitlines()
    assert said[0] == "counts: 1 of 2 late records are taken in again with the next batch of events"
    assert said[1].startswith("counts: 1 of 2 late records refused: the states of their windows are gone")
    assert said[2] == "  batch 2, partition 0, offset 3, key a, 2014-05-13T12:00:04.000Z"
    play.batch(at_ms=ms(73))
    assert results(play, "counts", 10) == ['{"n":1}'], "a window that had no record yet"
    with pytest.raises(InvalidArgument, match="1 of 2 late records refused"):
        ask(play)


def test_a_window_forgotten_meanwhile_finds_records_late_again(tmp_path: Path) -> None:
    play = closed(EVENTS + COUNTS, tmp_path, (4, 1))
    play.batch([event(play, 71)], at_ms=ms(72))
    control = play.control
    control.request_reopening(WindowReopening(id="x", operator="counts", late=((2, 0, 3),), at_ms=ms(72)))
    play.batch(at_ms=ms(73))
    assert results(play, "counts") == ['{"n":1}', '{"n":2}']
    assert [(r["batch_id"], r["offset"]) for r in play.rows("late_records")] == [(2, 3), (4, 3)]
    assert (counted(play, "counts", "late"), counted(play, "counts", "reopened")) == ([(2, 1), (4, 1)], [])


@pytest.mark.parametrize("jump_s", [45, 2_000_000])
def test_resetting_time_does_not_restore_deleted_states(tmp_path: Path, jump_s: int) -> None:
    play = Play(EVENTS + COUNTS, tmp_path)
    play.batch([event(play, 1), event(play, 2)], at_ms=ms(3))
    play.batch([event(play, jump_s)], at_ms=ms(jump_s + 1))
    play.batch([event(play, 4)], at_ms=ms(jump_s + 2))
    control = play.control
    control.request_time_reset(
        TimeReset(id="x", source="events", partition=0, to_ms=ms(5), from_offset=0, by="Ann", reason="2090", at_ms=0)
    )
    play.batch(at_ms=ms(jump_s + 3))
    if jump_s == 45:
        ask(play)
    else:
        with pytest.raises(InvalidArgument, match="the states of their windows are gone"):
            ask(play)
    play.batch(at_ms=ms(jump_s + 4))
    assert results(play, "counts")[-1] == ('{"n":3}' if jump_s == 45 else '{"n":2}')


def test_windows_from_before_reopen_for_was_set_are_refused(tmp_path: Path) -> None:
    without = (EVENTS + COUNTS).replace('reopen_for = "1 min"\n', "")
    play = closed(without, tmp_path, (4, 1))
    with pytest.raises(InvalidArgument, match=r'operators.counts: has no reopen_for, .* write reopen_for = "1 d"'):
        ask(play)
    later = Play(EVENTS + COUNTS, tmp_path)
    later.resume({"events": 3}, {("events", 0): 4})
    with pytest.raises(InvalidArgument, match="the states of their windows are gone"):
        ask(later)
    later.batch([event(later, 45)], at_ms=ms(46))
    later.batch([event(later, 6), event(later, 24)], at_ms=ms(47))
    assert "counts: 1 of 3 late records are taken in again" in ask(later)
    later.batch(at_ms=ms(48))
    assert results(later, "counts", 20) == ['{"n":1}', '{"n":2}']
    assert results(later, "counts") == ['{"n":1}', '{"n":2}'], "which would be 1 without the state that is gone"


def test_windows_that_cannot_be_reopened_are_refused_by_name(tmp_path: Path) -> None:
    play = closed(EVENTS + VISITS, tmp_path, (1, 1))
    with pytest.raises(InvalidArgument, match=r"operators.visits: a closed session cannot be reopened"):
        ask(play)
    with pytest.raises(InvalidArgument, match=r"operators.events: a source without windows cannot be reopened"):
        ask(play, "--operator", "events")
    with pytest.raises(InvalidArgument, match="--operator nosuch: is not an operator of play"):
        ask(play, "--operator", "nosuch")
    with pytest.raises(InvalidArgument, match="takes no --source"):
        ask(play, "--source", "events")
    with pytest.raises(InvalidSpec, match="reopen_for: is set for a session"):
        Play(EVENTS + VISITS + 'reopen_for = "1 min"', tmp_path)


@pytest.mark.parametrize(
    ("window", "start_s", "strategy"),
    [
        pytest.param(window, start_s, strategy, marks=() if strategy == in_ci else pytest.mark.long)
        for window, start_s, in_ci in (
            ('{ tumbling = "10 s" }', 0, "on_change"),
            ('{ hopping = "10 s", every = "5 s" }', 0, "on_window_close"),
            ('{ session = "3 s" }', 1, "on_change"),
        )
        for strategy in ("on_change", "on_window_close")
    ],
)
def test_a_longer_lateness_opens_no_deleted_window(tmp_path: Path, window: str, start_s: int, strategy: str) -> None:
    plain = (EVENTS + COUNTS).replace('reopen_for = "1 min"', f'strategy = "{strategy}"')
    plain = plain.replace('{ tumbling = "10 s" }', window)
    was = results(closed(plain, tmp_path), "counts", start_s)
    assert was[-1] == '{"n":2}'
    patient = 'kind = "aggregate"\nallowed_lateness = "1 min"'
    play = Play(plain.replace('kind = "aggregate"', patient), tmp_path)
    play.resume({"events": 2}, {("events", 0): 3})
    # The windows of 4 s and 5 s would be open if they had been as patient before; that of 24 s is.
    play.batch([event(play, 4), event(play, 24)], at_ms=ms(27))
    play.start()
    play.batch([event(play, 5)], at_ms=ms(28))
    play.batch([event(play, 100)], at_ms=ms(101))
    play.batch([event(play, 39.5)], at_ms=ms(102))  # behind the watermark of 98.999 s by less than a minute
    assert results(play, "counts", start_s) == was
    assert counted(play, "counts", "late") == [(2, 1), (3, 1)]
    assert [(row["timestamp"] - NOON) // 1_000 for row in play.rows("late_records")] == [4, 5]


def test_a_window_found_deleted_stays_deleted_after_a_time_reset(tmp_path: Path) -> None:
    plain = (EVENTS + COUNTS).replace('reopen_for = "1 min"\n', "")
    closed(plain, tmp_path)
    play = Play(plain.replace('kind = "aggregate"', 'kind = "aggregate"\nallowed_lateness = "1 min"'), tmp_path)
    play.resume({"events": 2}, {("events", 0): 3})
    play.control.request_time_reset(
        TimeReset(id="x", source="events", partition=0, to_ms=ms(5), from_offset=0, by="Ann", reason="2090", at_ms=0)
    )
    play.batch([event(play, 4), event(play, 12)], at_ms=ms(27))  # the window from 10 s had no record
    assert results(play, "counts") == ['{"n":1}', '{"n":2}']
    assert results(play, "counts", 10) == ['{"n":1}']


def test_late_timestamps_are_recovered_to_the_microsecond(tmp_path: Path) -> None:
    seen = COUNTS.replace('key = ["id"]\nwindow', 'key = ["id", "shift"]\nwindow').replace("count(*)", "max(at)")
    seen = seen.replace('key = ["id", "window_start"]', 'key = ["id", "shift", "window_start"]')
    fields = EVENTS.replace("v int, event_time bigint", "shift timestamp, at timestamp, event_time timestamp")
    play = Play(fields + seen, tmp_path)
    shift = datetime(2014, 5, 13, 6, 0, 0, 7, tzinfo=UTC)

    def seen_at(second: float, microsecond: int) -> Row:
        at = datetime(2014, 5, 13, 11, 0, 0, microsecond, tzinfo=UTC)
        return play.row("events", ms(second), key="a", id="a", shift=shift, at=at)

    play.batch([seen_at(1, 5)], at_ms=ms(3))
    play.batch([seen_at(25, 1)], at_ms=ms(26))
    play.batch([seen_at(4, 6)], at_ms=ms(27))
    assert ask(play).startswith("counts: 1 of 1 late records")
    play.start()
    play.batch(at_ms=ms(28))
    values = [f'{{"n":"2014-05-13T11:00:00.00000{n}+00:00"}}' for n in (5, 6)]
    assert results(play, "counts") == values
    rows = scan(Layout(tmp_path).stream_table("play", "events", "board")).sort("window_start").collect()
    at = [(row["shift"], row["n"].microsecond, row["window_start"]) for row in rows.iter_rows(named=True)]
    assert at == [(shift, 6, utc(NOON)), (shift, 1, utc(NOON + 20_000))]
