"""Intervals of tables: decided once, by watermark, with what they waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from support.command_line import tidemark
from support.crashes import Crash, crash_at
from support.play import NOON, Play, Row, ms, tell
from support.separate_executors import Apart
from support.topologies import aggregate, current, repartition, sink, source, table, topology_of
from tidemark.cli.explain.complete import as_line
from tidemark.control.folder import StreamState, TimeReset
from tidemark.errors import InvalidSpec
from tidemark.facts.measures.sla_facts import facts
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.slas.sla_spec import parse
from tidemark.query.sql import Warehouse
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.explaining import explainer
from tidemark.sla.measures.status import Status, statuses
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.why.intervals import IntervalState, interval_state
from tidemark.why.walk import scene

TENS = {"every": "10 s"}
BOARD = topology_of(
    events=source("id string, v int", idle_after="30 s"), board=sink("events", table="board", complete=TENS)
)
BEHIND_A_HOP = topology_of(
    events=source("id string, v int"),
    by_id=repartition(key=["id"], columns=["v"]),
    totals=aggregate("by_id", key=["id"], aggregates={"n": "count(*)"}, complete=TENS),
)


def play_of(toml: str, home: Path, *, partitions: int = 3) -> Play:
    return Play(toml, home, partitions=partitions)


def send(play: Play, at_s: float, *records: tuple[int, float]) -> None:
    """Runs a batch at *at_s*, with partition and second of each record."""
    play.batch(rows_of(play, records), at_ms=ms(at_s))


def rows_of(play: Play, records: Iterable[tuple[int, float]]) -> list[Row]:
    return [
        play.row("events", ms(second), partition=part, key="a", id="a", v=int(second // 20)) for part, second in records
    ]


def seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else (at_ms - NOON) / 1_000


def intervals(play: Play, *columns: str, sub: str | None = None) -> list[tuple[object, ...]]:
    """Returns start and *columns* of each row, instants in seconds."""
    instants = {"decided_at", "reopened_at"}
    return [
        (seconds(row["interval_start"]), *(seconds(row[c]) if c in instants else row[c] for c in columns))
        for row in play.rows("completeness", sub)
    ]


Batch = tuple[float, list[tuple[int, float]]]
THREE: list[Batch] = [
    (12, [(0, 1), (1, 2), (2, 3)]),
    (14, [(0, 12), (1, 13)]),
    (20, [(0, 22)]),
    (24, [(2, 11.5)]),
    (60, [(0, 32)]),
    (62, [(1, 5)]),
]
"""Partition 2 is slow, 1 and 2 are idle, 1 is late.

The bound is 1 s, so a partition has passed the end of an interval with a record 1 s after it.
"""


def run(play: Play, batches: Iterable[Batch]) -> None:
    for at_s, records in batches:
        send(play, at_s, *records)


def test_an_interval_waits_for_its_slowest_partition(tmp_path):
    play = play_of(BOARD, tmp_path)
    run(play, THREE)
    # 0 waits from 14 s, when 1 has passed its end, and 10 from 20 s, when 0 has. 1 and 2 are idle at 60 s.
    assert intervals(
        play, "decided_at", "records", "waited_for", "waited_for_partition", "waited_ms", "by_idleness"
    ) == [
        (0, 24, 3, "events", 2, 10_000, False),
        (10, 60, 3, "events", 2, 40_000, True),
        (20, 60, 1, None, None, 0, True),
        (0, 62, 1, None, None, 0, False),
    ]
    (view,) = (
        Warehouse(tmp_path)
        .ask(
            "select records, reopenings, epoch_ms(complete_at), epoch_ms(reopened_at), cause, waited_for_partition "
            f"from complete_intervals where epoch_ms(interval_start) = {NOON}"
        )
        .rows
    )
    assert view == (4, 1, ms(24), ms(62), "late_record", 2)
    reopened = intervals(play, "reopened_at", "cause", "cause_partition", "cause_offset")
    assert reopened == [(0, None, None, None, None), (10, *[None] * 4), (20, *[None] * 4), (0, 62, "late_record", 1, 2)]


def broken(play: Play, at_s: float) -> Status:
    """Returns the status of an SLA of 10 s, with its culprit."""
    sla = {"subject": "board", "complete_by": "10 s", "owner": "ann"}
    specs = parse({"play": {"in_time": sla}}, play.topology, file="slas.toml")
    tables, at_ms = Warehouse(play.home), ms(at_s)
    found = statuses(specs, play.topology, facts(tables, play.topology, specs, {}, at_ms=at_ms), [], at_ms=at_ms)
    (status,) = found
    why = explainer(play.topology, Layout(play.home), tables.stored, at_ms=at_ms)(status)
    return replace(status, culprit=why.culprit)


def test_a_late_interval_breaks_its_sla(tmp_path):
    play = play_of(BOARD, tmp_path)
    run(play, THREE[:3])
    assert broken(play, 19.9).verdict is Verdict.UNKNOWN, "the topology is new"
    run(play, THREE[3:4])
    late = broken(play, 25)
    assert (late.verdict, late.observed_ms, late.culprit) == (Verdict.ERROR, 14_000, "events/2"), "it waited for 2"
    still_open = broken(play, 35)
    assert (still_open.verdict, still_open.observed_ms, still_open.culprit) == (Verdict.ERROR, 15_000, "events/2")
    assert [late.crossed_ms, still_open.crossed_ms] == [ms(20)] * 2, "the deadline of the interval to 10 s came first"


def test_an_interval_before_the_first_breaks_no_sla(tmp_path):
    play = play_of(BOARD, tmp_path, partitions=1)
    send(play, 12, (0, 11))
    send(play, 22, (0, 21))
    send(play, 23, (0, 5))  # the interval from 0 s has no record before
    assert intervals(play, "decided_at", "reopened_at") == [(10, 22, None), (0, 23, None)]
    passed = broken(play, 24)
    assert (passed.verdict, passed.observed_ms) == (Verdict.PASS, 2_000), "the interval from 10 s was complete in time"


def test_a_commit_after_a_change_has_the_interval_before(tmp_path):
    play = play_of(BOARD, tmp_path, partitions=1)
    run(play, [(12, [(0, 1), (0, 12)])])
    other = Play(BOARD.replace('"10 s"', '"30 s"'), tmp_path, partitions=1)
    other.process(1, [other.row("events", ms(13), key="a", id="a", v=1) | {"offset": 2}], at_ms=ms(14))
    shown = json.loads(DeltaTable(str(other.table("board"))).history(1)[0]["userMetadata"])
    assert shown["complete"] == "2014-05-13T12:00:00.000Z/2014-05-13T12:00:10.000Z"


def test_an_interval_of_another_length_is_answered_by_its_end(tmp_path):
    play = play_of(BOARD, tmp_path, partitions=1)
    run(play, [(33, [(0, 1), (0, 12), (0, 32)])])  # complete until 30 s

    def answer(every: str) -> tuple[bool | None, int | None, str]:
        topology = Play(BOARD.replace('"10 s"', f'"{every}"'), tmp_path, partitions=1).topology
        state = interval_state(scene(topology, Layout(tmp_path), ms(34)), topology.operators["board"], ms(5))
        return state.is_complete, state.records, state.reason

    before = "its records were counted in intervals of another length, before `every` or `timezone` was changed"
    assert answer("15 s") == (True, None, before)
    assert answer("40 s")[:2] == (False, None)


def ask(play: Play, *words: str) -> tuple[int, str]:
    (play.home / "play.toml").write_text(play.toml)
    place = ("--topology", str(play.home / "play.toml"))
    answer = tidemark(play.home, "--warehouse", str(play.home), "complete", *words, *place)
    return answer.returncode, (answer.stdout + answer.stderr).strip()


def test_the_command_says_since_when_or_why_not(tmp_path):
    play = play_of(BOARD, tmp_path)
    run(play, THREE)
    assert ask(play, "board", "--at", "12:00:09") == ask(play, "board", "--at", "12:00")
    assert ask(play, "board", "--at", "12:00") == (
        0,
        "board 2014-05-13 12:00:00–12:00:10 UTC: complete since 2014-05-13 12:00:24, reopened 1 time: the "
        "watermark has passed 2014-05-13 12:00:09.999; 4 records; not final: late records still change it; "
        "it waited longest for events partition 2: 10 s; reopened at 2014-05-13 12:01:02: late_record, "
        'partition 1, offset 2: bound = "1 s" of events is too short for it',
    )
    code, text = ask(play, "board", "--at", "2014-05-13T12:00:30")
    opened = "board 2014-05-13 12:00:30–12:00:40 UTC: not complete, no estimate; the watermark is "
    assert code == 1
    assert text.startswith(f"{opened}2014-05-13 12:00:30.999, and 2014-05-13 12:00:39.999 is needed: ")
    code, text = ask(play, "board", "--at", "2014-05-13T11:00", "--format", "json")
    assert (code, json.loads(text)["is_complete"]) == (1, None)
    assert ask(play, "bord") == (
        1,
        "tidemark complete: no table 'bord' has intervals; write complete = { every = \"1 h\" } at its operator; "
        "known: board",
    )


def test_an_open_interval_names_the_partition_that_holds_it_back(tmp_path):
    play = play_of(BEHIND_A_HOP, tmp_path)
    send(play, 12, (0, 4), (1, 2), (2, 3))
    play.hop("by_id", at_ms=ms(13))
    tell(Heartbeats(Layout(tmp_path).stream("play", "by_id"), topology="play", sub_topology="by_id"), 14)
    state = interval_state(scene(play.topology, Layout(tmp_path), ms(15)), play.topology.operators["totals"], ms(5))
    assert state.reason.endswith(
        "records have come to 2014-05-13T12:00:04.000Z, and events partition 1, which holds the watermark back, to "
        "2014-05-13T12:00:02.000Z"
    )


def test_an_open_interval_says_that_silence_has_moved_the_watermark(tmp_path):
    """Record time goes on with the clock, 5 s and the bound behind it, and the estimate with the newest batch."""
    toml = BOARD.replace('idle_after = "30 s"', 'idle_after = "5 s"\nidle_advances = true')
    play = play_of(toml, tmp_path, partitions=1)
    send(play, 12, (0, 11))
    send(play, 40)
    tell(Heartbeats(Layout(tmp_path).stream("play", "events"), topology="play", sub_topology="events"), 40.5)
    combined = [row for row in play.rows("partition_batches") if row["source"] is None]
    watermark_ms = max(row["watermark"] for row in combined)
    asked = [
        interval_state(scene(play.topology, Layout(tmp_path), ms(at)), play.topology.operators["board"], ms(45))
        for at in (41, 43, 90)
    ]
    assert asked[0].reason.endswith(
        "the newest record is of 2014-05-13T12:00:11.000Z, and silence has moved it (idle_advances of events)"
    )
    expected_s = 40 + 49.999 - seconds(watermark_ms)
    assert [seconds(state.expected_at_ms) for state in asked] == [expected_s, expected_s, None]


SUMS = aggregate(
    "records", key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
)
MINUTES = aggregate("records", key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"})
EVENTS, STRICT = source("id string, v int"), source("id string, v int", allowed_lateness="0 s")
FINAL = {
    "lenient source": ({"events": EVENTS}, False),
    "strict source": ({"events": STRICT}, True),
    "windows": ({"records": EVENTS, "events": SUMS}, True),
    "windows that are open for longer": ({"records": EVENTS, "events": MINUTES}, False),
    "one of two ways is lenient": (
        {
            "records": EVENTS,
            "strict": {**STRICT, "topic": "others"},
            "events": {"kind": "union", "inputs": ["records", "strict"]},
        },
        False,
    ),
}


@pytest.mark.parametrize("name", FINAL)
def test_results_are_final_where_each_way_sets_late_records_aside(tmp_path, name):
    operators, is_final = FINAL[name]
    toml = topology_of(**operators, board=sink("events", table="board", complete=TENS))
    play = play_of(toml, tmp_path, partitions=1)
    sources = [each.name for each in play.topology.outside_sources]
    for second in (1, 21):
        rows = [play.row(each, ms(second), key="a", id="a", v=second) for each in sources]
        play.batch(rows, at_ms=ms(second + 2))
    # The watermark has passed the interval to 10 s, in which the record would be the first of its key.
    play.batch([play.row(sources[0], ms(2), key="b", id="b", v=1)], at_ms=ms(24))
    state = interval_state(scene(play.topology, Layout(play.home), ms(24)), play.topology.operators["board"], ms(5))
    assert (state.is_complete, state.is_final, state.reopenings) == (True, is_final, 0 if is_final else 1)


@pytest.mark.parametrize(
    ("every", "start", "end", "shown"),
    [
        ("1 h", "2026-10-25T00:00Z", "2026-10-25T01:00Z", "2026-10-25 02:00 CEST–02:00 CET Europe/Berlin"),
        ("1 h", "2026-10-25T01:00Z", "2026-10-25T02:00Z", "2026-10-25 02:00 CET–03:00 CET Europe/Berlin"),
        ("1 d", "2026-03-28T23:00Z", "2026-03-29T22:00Z", "2026-03-29 00:00 CET–2026-03-30 00:00 CEST Europe/Berlin"),
        ("1 h", "2026-10-26T01:00Z", "2026-10-26T02:00Z", "2026-10-26 02:00–03:00 Europe/Berlin"),
    ],
)
def test_hours_in_which_clocks_change_are_told_apart(tmp_path, every, start, end, shown):
    keys = {"every": every, "timezone": "Europe/Berlin"}
    toml = topology_of(events=source("id string"), board=sink("events", table="board", complete=keys))
    play = play_of(toml, tmp_path)
    span = {"start_ms": instant_ms(start), "end_ms": instant_ms(end)}
    state = IntervalState(
        operator="board", **span, is_complete=None, is_final=True, watermark_needed_ms=0, reason="none"
    )
    assert as_line(state, play.topology.operators["board"]) == f"board {shown}: not known; none"


def test_an_open_interval_has_an_estimate(tmp_path):
    play, layout = play_of(BOARD, tmp_path), Layout(tmp_path)
    run(play, THREE[:5])
    history = Heartbeats(layout.stream("play", "events"), topology="play", sub_topology="events")

    def expected_s() -> float | None:
        state = interval_state(scene(play.topology, layout, ms(63)), play.topology.operators["board"], ms(35))
        assert not state.is_complete
        return seconds(state.expected_at_ms)

    assert expected_s() is None, "no driver has a heartbeat"
    tell(history, 30)
    # The watermark is 30.999 s, and 39.999 s is needed: 9 s more.
    assert expected_s() == 60 + 9
    load = {"arrival_per_s": 1.0, "working_per_s": 2.0, "records_behind": 9}
    tell(history, 46, eta_at=ms(90), **load)
    assert expected_s() == 90, "it has read everything by then"
    tell(history, 62, **load)
    assert expected_s() is None, "it falls further behind"
    tell(history, 62.5, StreamState.DRAINED)
    assert expected_s() is None, "nothing runs until somebody starts it"


LATER_STEPS = [
    "committed board",
    "measured",
    "committed latency_minutes",
    "committed operator_batches",
    "committed batches",
]


@pytest.mark.parametrize(
    "step",
    ["decided", "committed completeness", *(pytest.param(step, marks=pytest.mark.long) for step in LATER_STEPS)],
)
def test_a_killed_driver_decides_each_interval_once(step, tmp_path):
    """In each batch that reaches *step*, a driver is killed there."""
    play, kills = play_of(BOARD, tmp_path), 0
    for number, (at_s, records) in enumerate([THREE[0], (24, [(0, 22), (1, 13), (2, 11.5)]), (62, [(1, 5)])]):
        rows = rows_of(play, records)
        play.start(reached=crash_at(step), epoch=2 * number + 1)
        try:
            play.process(number, rows, at_ms=ms(at_s))
        except Crash:
            kills += 1
            play.start(epoch=2 * number + 2)
            # The next driver's clock is later; the decision time is that of the plan.
            play.process(number, rows, at_ms=ms(at_s), now_ms=ms(at_s + 3))
    found = intervals(play, "decided_at", "reopened_at", "records", "waited_for_partition", "waited_ms")
    assert found == [(0, 24, None, 3, None, 0), (0, 62, 62, 1, None, 0)]
    # A batch that completes no interval does not commit the table.
    assert kills == (2 if step == "committed completeness" else 3)


@pytest.mark.parametrize("mode", ["append", pytest.param("current", marks=pytest.mark.long)])
def test_each_commit_has_the_newest_complete_interval(mode, tmp_path):
    toml = BOARD if mode == "append" else BOARD + 'mode = "current"\nkey = ["id"]\nrefresh = "0 s"\n'
    play = play_of(toml, tmp_path)
    run(play, [THREE[0], (24, [(0, 22), (1, 13), (2, 11.5)])])
    commits = DeltaTable(str(play.table("board"))).history()
    shown = [json.loads(commit["userMetadata"]) for commit in commits if "userMetadata" in commit]
    interval = "2014-05-13T12:00:00.000Z/2014-05-13T12:00:10.000Z"
    assert shown == [
        {"watermark": "2014-05-13T12:00:10.499Z", "complete": interval},
        {"watermark": "2014-05-13T11:59:59.999Z", "complete": None},
    ]


def test_shards_decide_the_same_intervals(tmp_path):
    alone, shared = (play_of(BOARD, tmp_path / name) for name in ("alone", "shared"))
    shared.in_shards(2, Apart)
    for play in (alone, shared):
        run(play, THREE)
    assert shared.rows("completeness") == alone.rows("completeness")
    assert len(alone.rows("completeness")) == 4


WINDOWED = topology_of(
    events=source("id string, v int"),
    counts=aggregate(
        key=["id"], window={"tumbling": "5 s"}, allowed_lateness="4 s", strategy="on_window_close",
        aggregates={"n": "count(*)"}, complete=TENS,
    ),
    log=sink("counts", table="log", complete=TENS),
)  # fmt: skip


def test_allowed_lateness_keeps_an_interval_open(tmp_path):
    play = play_of(WINDOWED, tmp_path, partitions=1)
    send(play, 2, (0, 1), (0, 7))
    send(play, 15, (0, 14.5))  # the watermark is 13.499 s: 1 ms and half a second before 10 s + 4 s
    send(play, 16, (0, 9.5))  # late by 5 s, but its window is open
    send(play, 17, (0, 15))  # the watermark is 13.999 s
    at_end = [(0, 17, 3 if each == "counts" else 2, 2) for each in ("counts", "log")]
    assert intervals(play, "decided_at", "records", "emitted") == at_end, "three records in two windows"
    assert [row["n"] for row in play.rows("log")] == [1, 2], "the table has them when its interval is complete"
    send(play, 18, (0, 9.6))
    assert len(play.rows("completeness")) == 2, "a record that its window does not accept reopens nothing"


def test_suppressed_updates_reopen_nothing(tmp_path):
    toml = topology_of(
        events=source("id string, v int"),
        newest=table(columns=["v"], rule="value_only", complete=TENS),
        board=sink("newest", table="board", complete=TENS),
    )
    play = play_of(toml, tmp_path, partitions=1)
    send(play, 12, (0, 1), (0, 2), (0, 12))
    assert intervals(play, "operator", "records", "emitted") == [(0, "newest", 2, 1), (0, "board", 1, 1)]
    send(play, 13, (0, 3))
    assert len(play.rows("completeness")) == 2


@pytest.mark.long  # tests/unit/test_completeness.py and others have its parts
def test_held_results_keep_an_interval_open(tmp_path):
    toml = topology_of(
        events=source("id string, v int"),
        newest=table(strategy="periodic", interval="10 s"),
        board=sink("newest", table="board", complete=TENS),
    )
    play = play_of(toml, tmp_path, partitions=1)
    send(play, 3, (0, 1))
    send(play, 12, (0, 9))  # the interval of decision time from 0 s ends: what is there is sent
    send(play, 14, (0, 12))  # the watermark has passed 10 s, and the record of 12 s is held
    assert intervals(play) == []
    send(play, 20)
    assert intervals(play, "decided_at", "emitted", "waited_for", "waited_ms") == [(0, 20, 1, "newest", 6_000)]


@pytest.mark.long  # the test below has more hops, and no counts
def test_a_table_behind_a_hop_completes_with_its_marks(tmp_path):
    play = play_of(BEHIND_A_HOP, tmp_path)
    send(play, 12, (0, 1), (1, 2), (2, 12))
    send(play, 20, (0, 11), (1, 11.5))
    play.hop("by_id", at_ms=ms(22))
    assert intervals(play, "table", "decided_at", "records", sub="by_id") == [(0, "totals", 22, 2)]


def test_idleness_of_a_partition_is_known_behind_hops(tmp_path):
    toml = topology_of(
        events=source("id string, v int", idle_after="30 s"),
        by_id=repartition(key=["id"], columns=["v"]),
        newest=table("by_id", sub_topology="middle", columns=["v"]),
        by_v=repartition("newest", id=["id"], key=["v"], columns=["id"]),
        totals=aggregate("by_v", sub_topology="last", aggregates={"n": "count(*)"}, complete=TENS),
    )
    play = play_of(toml, tmp_path)
    batches: list[Batch] = [
        (12, [(0, 1), (1, 2)]),
        (45, [(0, 32), (1, 31)]),
        (80, [(0, 65), (2, 65)]),
        (81, [(0, 75), (1, 75), (2, 75)]),
    ]
    for at_s, records in batches:
        send(play, at_s, *records)
        play.hop("middle", at_ms=ms(at_s))
        play.hop("last", at_ms=ms(at_s))
    # Partition 2 has no record before 80 s, and is idle at 45 s. Partition 1 has passed 30 s, and is idle at 80 s.
    assert intervals(play, "decided_at", "by_idleness", sub="last") == [
        *((start, 45, True) for start in (0, 10, 20)),
        *((start, 80, True) for start in (30, 40, 50)),
        (60, 81, False),
    ]
    topology = play.topology
    state = interval_state(scene(topology, Layout(play.home), ms(90)), topology.operators["totals"], ms(5))
    assert (state.by_idleness, state.reason) == (
        True, "it waited for no record: silence of an idle partition let the watermark advance",
    )  # fmt: skip


def test_periodic_results_of_another_stream_are_refused(tmp_path):
    toml = topology_of(
        events=source("id string, v int"),
        newest=table(strategy="periodic", interval="10 s"),
        by_v=repartition("newest", id=["id"], key=["v"], columns=["id"]),
        totals=aggregate("by_v", aggregates={"n": "count(*)"}, complete=TENS),
    )
    with pytest.raises(InvalidSpec) as refused:
        play_of(toml, tmp_path)
    assert str(refused.value) == (
        "play.toml: operators.totals.complete: is set, but 'newest' sends results later than its watermark says, "
        "across a repartition; write complete at 'newest', or give it another strategy"
    )


@pytest.mark.long  # tests/unit/test_completeness.py and others have its parts
def test_time_that_is_set_back_reopens_and_repeats_nothing(tmp_path):
    play = play_of(BOARD, tmp_path, partitions=1)
    send(play, 12, (0, 1), (0, 12))
    reset = TimeReset(
        id="r", source="events", partition=0, to_ms=ms(4), from_offset=2, by="Ann", reason="2090", at_ms=0
    )
    play.control.request_time_reset(reset)
    send(play, 14, (0, 5))
    send(play, 16, (0, 13))
    assert intervals(play, "reopened_at", "cause", "records") == [(0, None, None, 1), (0, 14, "time_reset", 1)]


@pytest.mark.long  # tests/unit/test_completeness.py and others have its parts
def test_a_tables_rows_are_merged_with_its_interval(tmp_path):
    toml = topology_of(
        events=source("id string, v int"), board=current("events", "board", refresh="1 min", complete=TENS)
    )
    play = play_of(toml, tmp_path, partitions=1)
    send(play, 2, (0, 1))
    send(play, 3, (0, 2))
    assert [seconds(row["event_time"]) for row in play.rows("board")] == [1], "the rest is merged after a minute"
    send(play, 12, (0, 12))
    assert len(intervals(play)) == 1
    assert [seconds(row["event_time"]) for row in play.rows("board")] == [12]
