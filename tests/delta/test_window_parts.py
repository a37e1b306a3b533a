"""SLAs of records are judged by records, on their operator's path."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import critical_path
from support.play import NOON, Play, ms, tell
from support.quiet_broker import Ends
from support.topologies import NEWEST, aggregate, operators, sink, table
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_spec import parse
from tidemark.model.tables.catalog import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.storage.delta.report_tables import open_report
from tidemark.stream.decide import decision
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.journal.batch import QueueWait
from tidemark.why.walk import why

BOARD = NEWEST.replace('bound = "1 s"', 'bound = "3 s"')
BESIDE = BOARD.replace("[operators.board]", operators(slow=table(columns=["v"]), board={}))  # fmt: skip
COUNTS = BOARD + operators(
    counts=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"),
    totals=sink("counts", table="totals"),
)


def promise(subject: str, measure: str = "latency_p99") -> dict[str, dict[str, str]]:
    limits = {"subject": subject, "measure": measure, "error_after": "4 s", "owner": "o"}
    return {"in_time": limits}


class Played:
    """A play of two partitions and a batch per second.

    Its clock continues while operators are slow.
    """

    def __init__(self, play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play = play
        monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.play.now_ms += round(seconds * 1_000)

    def goes_on(self, first_s: int, last_s: int, *parts: int, every_s: int = 1) -> None:
        """Runs a batch each *every_s* with 200 ms old records of *parts*."""
        for second in range(first_s, last_s, every_s):
            self.play.batch(
                [self.play.row("events", ms(second - 0.2), partition=part, id="ab"[part], v=second) for part in parts],
                at_ms=ms(second),
            )

    def reported(self, subject: str, measure: str = "latency_p99") -> tuple[list, list]:
        """The paths, and the parts at *subject*, in the order of windows."""
        play, layout = self.play, Layout(self.play.home)
        specs = parse({"play": promise(subject, measure)}, play.topology, file="slas.toml")
        critical_path.run(layout, play.topology, specs, Interval(NOON, NOON + 3_600_000))
        paths, parts = (
            open_report(table, layout.report_table("play", table.name)).to_pyarrow_table().to_pylist()
            for table in (CRITICAL_PATHS, WINDOW_PARTS)
        )
        paths = sorted((row for row in paths if row["latency_ms"] is not None), key=lambda row: row["window_end"])
        ordered = sorted(parts, key=lambda row: row["window_end"])
        return paths, [row for row in ordered if row["subject"] == subject]


def beginning(toml: str, home: Path) -> Play:
    play = Play(toml, home, partitions=2)
    play.broker = Ends(2)
    return play


@pytest.fixture(scope="module")
def board_until(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Play]:
    """Returns BOARD played from second 1 until a second, to copy."""

    @cache
    def played(last_s: int) -> Play:
        play = beginning(BOARD, tmp_path_factory.mktemp("board") / "play")
        with pytest.MonkeyPatch.context() as monkeypatch:
            Played(play, monkeypatch).goes_on(1, last_s, 0, 1)
        return play

    return played


def blamed(parts: list) -> list[str]:
    """Returns the culprit of each window over its SLA."""
    worst = {}
    for row in parts:
        if row["over_sla"] and row["excess_ms"] > worst.get(row["window_end"], row)["excess_ms"] - 1e-9:
            worst[row["window_end"]] = row
    return [row["operator"] for row in worst.values()]


def test_fast_records_meet_an_sla_shorter_than_the_window_age(tmp_path, monkeypatch):
    flow = Played(beginning(BOARD, tmp_path), monkeypatch)
    flow.goes_on(1, 15, 0, 1)
    paths, parts = flow.reported("board")
    assert [(row["before_source_ms"], row["over_sla"]) for row in paths] == [(4_000, False)]
    # it ended at 12:00:10; the record of 13.8 s was the first beyond the bound, and its batch began at 14 s
    assert {row["operator"]: row["ms"] for row in parts} == {"bound": 3_000, "blocking_partition": 800, "trigger": 200}


def test_a_slow_operator_is_the_culprit_and_not_the_bound(tmp_path, monkeypatch, board_until):
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)
    flow.play.slow_ms = {"newest": 4_500}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    paths, parts = flow.reported("board")
    assert paths[0]["over_sla"] is False
    assert paths[-1]["over_sla"] is True
    assert set(blamed(parts)) == {"newest"}
    assert {(row["over_sla"], *row["broken_slas"]) for row in parts} == {(False,), (True, "in_time")}


def test_an_sla_of_work_blames_for_the_work_that_it_judged(tmp_path, monkeypatch, board_until):
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)
    flow.play.slow_ms = {"newest": 4_900}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    _, parts = flow.reported("newest", "operator_latency_p50")
    # The window until 12:00:20 was closed by the record of 25.8 s, in the batch at 26 s. The batch of 21 s ended at
    # 25.9 s, so newest's part of the age has 0.1 s of it, and 4.9 s of work on the window. The limit of that is 4 s.
    row = next(row for row in parts if (row["window_end"].second, row["operator"]) == (20, "newest"))
    assert (row["ms"], row["compared"], row["judged_ms"], row["expected_ms"], row["excess_ms"]) == (
        5_000, "work", 4_900, 4_000, 900,
    )  # fmt: skip


def test_a_slow_sibling_is_the_culprit_and_not_the_queued_one(tmp_path, monkeypatch):
    flow = Played(beginning(BESIDE, tmp_path), monkeypatch)
    flow.goes_on(1, 12, 0, 1)
    flow.play.slow_ms = {"slow": 4_500}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    _, parts = flow.reported("board")
    assert set(blamed(parts)) == {"slow"}


def test_another_stream_of_the_process_is_named(tmp_path, monkeypatch, board_until):
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)

    def queued(since_ms: int) -> QueueWait:
        flow.play.now_ms += 4_500
        return QueueWait(4_500, ("flights/status",))

    flow.play.queued = queued
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    _, parts = flow.reported("board")
    assert set(blamed(parts)) == {"queued"}
    named = {(row["ms"], row["input"]) for row in parts if row["operator"] == "queued" and row["ms"] > 100}
    assert named == {(4_500, "flights/status")}


def test_a_silent_partition_is_named_when_results_wait(tmp_path, monkeypatch):
    flow = Played(beginning(COUNTS, tmp_path), monkeypatch)
    flow.goes_on(1, 5, 0, 1)
    flow.goes_on(5, 80, 0, every_s=15)
    flow.goes_on(80, 82, 0, 1)
    paths, parts = flow.reported("totals")
    worst = max(parts, key=lambda row: row["excess_ms"] or 0)
    assert (worst["operator"], worst["input"]) == ("blocking_partition", "events partition 1")
    # the window until 12:00:10 waited from 13 s, when records beyond its bound could come, for the one of 79.8 s
    first = {row["operator"]: row["ms"] for row in parts if row["window_end"] == paths[0]["window_end"]}
    assert (first["bound"], first["blocking_partition"]) == (3_000, 66_800)
    whole = {row["window_end"]: row["age_ms"] for row in parts}
    assert whole == {
        end: sum(row["ms"] for row in parts if row["window_end"] == end) for end in {row["window_end"] for row in parts}
    }


QUIET = COUNTS.replace('bound = "3 s"', 'bound = "3 s"\nidle_after = "4 s"\nidle_advances = true')


@pytest.mark.parametrize(("closed_s", "rest"), [(17.5, {"trigger": 500}), (25, {"unknown": 7_000, "trigger": 1_000})])
def test_time_until_silence_moves_the_watermark_is_a_part_of_its_own(tmp_path, monkeypatch, closed_s, rest):
    """The last record was read at 9 s, by partition 0, and is from 8.8 s.

    After 4 s of silence time is at 12.8 s, and after 8 s at 16.8 s, beyond the end of the window (10 s) and the bound.
    So the batch was due at 17 s; why it came later than a trigger no fact says.
    """
    flow = Played(beginning(QUIET, tmp_path), monkeypatch)
    flow.goes_on(1, 9, 0, 1)
    flow.goes_on(9, 10, 0)
    for second in (14, 15, closed_s):
        flow.play.batch(at_ms=ms(second))
    _, parts = flow.reported("totals")
    silence = (4_000, 'events partition 0, idle_after = "4 s", idle_advances = true')
    of_window = {row["operator"]: (row["ms"], row["input"]) for row in parts if row["window_end"].second == 10}
    assert of_window.pop("silence") == silence
    assert {name: length_ms for name, (length_ms, _) in of_window.items()} == {"bound": 3_000, **rest}


FIRST_BEYOND = {
    "the newest record of the batch": ([9.5, 19.8], {"blocking_partition": 6_800, "trigger": 200}),
    "a record between others": (
        [9.5, 16, 19.8],
        {"blocking_partition": 3_000, "late_producer": 3_000, "trigger": 1_000},
    ),
}
"""Records (s) of the batch at 20 s, and the parts after the bound, to 1 % of the latency of the first beyond 13 s."""


@pytest.mark.parametrize("name", FIRST_BEYOND)
def test_a_producer_wrote_late_only_if_the_closing_record_did(tmp_path, monkeypatch, board_until, name):
    seconds, expected = FIRST_BEYOND[name]
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)
    rows = [
        flow.play.row("events", ms(second), partition=part, id="ab"[part], v=1) for second in seconds for part in (0, 1)
    ]
    flow.play.batch(rows, at_ms=ms(20))
    _, parts = flow.reported("board")
    of_window = {row["operator"]: row["ms"] for row in parts if row["window_end"].second == 10}
    assert of_window == pytest.approx({"bound": 3_000, **expected}, abs=40)


SILENCES = {
    "stopped": (None, "backlog", 10),  # its beats end, too
    "hung": (11, "backlog", 11),  # they go on while a batch is running since 12:00:11
    "waiting": (None, "late_producer", None),
}
"""Gives the culprit by the driver's state around 12:00:10 to 12:00:50.

When its batch began, the culprit, and since when it is known.
"""


@pytest.mark.parametrize("name", SILENCES)
def test_the_culprit_of_results_after_a_silence_is_named(tmp_path, monkeypatch, board_until, name):
    batch_s, culprit, since_s = SILENCES[name]
    flow = Played(board_until(11).copied_to(tmp_path / "play"), monkeypatch)
    topology, layout = flow.play.topology, Layout(flow.play.home)
    (sub,) = topology.sub_topologies
    beats = Heartbeats(layout.stream("play", sub.name), topology="play", sub_topology=sub.name)
    for second in [*range(11), *(range(11, 50) if name != "stopped" else []), 50]:
        tell(beats, second, batch_s=batch_s if 10 < second < 50 else None)
    meanwhile = {"stopped": "backlog", "hung": "slow_batch", "waiting": "nothing_wrong"}[name]
    assert [finding.cause for finding in why(topology, layout, at_ms=ms(49))] == [meanwhile]
    waited = [
        flow.play.row("events", ms(s), partition=part, id="ab"[part], v=s) for s in range(11, 50) for part in (0, 1)
    ]
    flow.play.batch(waited, at_ms=ms(50))
    _, parts = flow.reported("board")
    # the window until 12:00:10 waited for the first record of 13 s or later, which was read at 50 s, a trigger later
    of_window = {row["operator"]: (row["ms"], row["input"]) for row in parts if row["window_end"].second == 10}
    assert (set(blamed(parts)), of_window[culprit][0]) == ({culprit}, 36_000)
    if since_s is not None:
        seen = (
            f"nothing was read from 2014-05-13T12:00:{since_s}.000Z to 2014-05-13T12:00:50.000Z, and 78 records waited"
        )
        assert of_window[culprit][1] == f"driver of {sub.name}: {seen}"
        for at_s in (20, 49, 51):
            (finding, *_) = why(topology, layout, at_ms=ms(at_s))
            assert (finding.cause, finding.since_ms, seen in finding.seen) == ("backlog", ms(since_s), True)
