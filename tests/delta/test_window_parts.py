"""Reports divide the age of a window by the account of time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

import critical_path
from support.play import NOON, Play, ms
from support.quiet_broker import Ends
from support.topologies import NEWEST, aggregate, operators, sink
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.storage.delta.report_tables import open_report
from tidemark.stream.decide import decision
from tidemark.stream.journal.batch import QueueWait

BOARD = NEWEST.replace('bound = "1 s"', 'bound = "3 s"')
COUNTS = BOARD + operators(
    counts=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"),
    totals=sink("counts", table="totals"),
)
Parts = dict[tuple[str, str], int]
"""The lengths of the parts of a window, by owner and detail."""


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

    def reported(self, subject: str) -> dict[int, Parts]:
        """The parts of each closed window by the second of record time at which it ends; they add up to its age."""
        play, layout = self.play, Layout(self.play.home)
        specs = parse({"play": promise(subject)}, play.topology, file="slas.toml")
        critical_path.run(layout, play.topology, specs, Interval(NOON, NOON + 3_600_000))
        paths, parts = (
            open_report(table, layout.report_table("play", table.name)).to_pyarrow_table().to_pylist()
            for table in (CRITICAL_PATHS, WINDOW_PARTS)
        )
        found: dict[int, Parts] = {}
        for row in parts:
            end_s = round(row["window_end"].timestamp()) - NOON // 1_000
            found.setdefault(end_s, {})[row["owner"], row["detail"]] = row["ms"]
        for path in paths:
            end_s = round(path["window_end"].timestamp()) - NOON // 1_000
            if path["latency_ms"] is not None:
                assert sum(found[end_s].values()) == path["before_source_ms"] + path["latency_ms"]
        return found


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


def test_a_window_waits_for_the_bound_and_then_for_the_first_record_beyond_it(tmp_path, monkeypatch):
    flow = Played(beginning(BOARD, tmp_path), monkeypatch)
    flow.goes_on(1, 15, 0, 1)
    # it ended at 12:00:10; the record of 13.8 s was the first beyond the bound, and was read at 14 s
    assert flow.reported("board") == {
        10: {("bound", "events"): 3_000, ("next_record", "events/1"): 800, ("producer", "events/1"): 200}
    }


@pytest.mark.parametrize(("set_ms", "of_clock"), [(2, []), (500, [500])])
def test_parts_add_up_where_two_readings_of_a_clock_differ(tmp_path, monkeypatch, set_ms, of_clock):
    """The wall clock, by which the window's age is told, is further than the boot clock when the window closes."""
    flow = Played(beginning(BOARD, tmp_path), monkeypatch)
    flow.goes_on(1, 13, 0, 1)
    flow.play.set_ms = set_ms
    flow.goes_on(13, 15, 0, 1)
    parts = flow.reported("board")[10]
    assert sum(parts.values()) == 4_000 + set_ms
    assert [ms for (owner, _), ms in parts.items() if owner == "clock"] == of_clock


def test_the_work_of_an_operator_is_a_part(tmp_path, monkeypatch, board_until):
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)
    flow.play.slow_ms = {"newest": 4_500}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    # The window until 12:00:20 was closed by the record of 25.8 s, in the batch at 26 s. That began when the batch of
    # 21 s had ended, at 25.5 s.
    assert flow.reported("board")[20]["operator", "newest"] == 4_500


def test_another_stream_of_the_process_is_named(tmp_path, monkeypatch, board_until):
    flow = Played(board_until(12).copied_to(tmp_path / "play"), monkeypatch)

    def queued(since_ms: int) -> QueueWait:
        flow.play.now_ms += 4_500
        return QueueWait(4_500, ("flights/status",))

    flow.play.queued = queued
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    assert flow.reported("board")[20]["slots", "flights/status"] == 4_500


def test_a_silent_partition_is_named_when_results_wait(tmp_path, monkeypatch):
    flow = Played(beginning(COUNTS, tmp_path), monkeypatch)
    flow.goes_on(1, 5, 0, 1)
    flow.goes_on(5, 80, 0, every_s=15)
    flow.goes_on(80, 82, 0, 1)
    # it waited from 13 s, when records beyond its bound could come, for the one of 79.8 s
    assert flow.reported("totals")[10] == {
        ("bound", "events"): 3_000, ("next_record", "events/1"): 66_800, ("producer", "events/1"): 200
    }  # fmt: skip


QUIET = COUNTS.replace('bound = "3 s"', 'bound = "3 s"\nidle_after = "4 s"\nidle_advances = true')


def test_time_until_silence_moves_the_watermark_is_a_part_of_its_own(tmp_path, monkeypatch):
    """The last record was read at 9 s, by partition 0, and is from 8.8 s.

    After 4 s of silence time is at 12.8 s, and after 8 s at 16.8 s, beyond the end of the window (10 s) and the bound.
    So the batch was due at 17 s.
    """
    flow = Played(beginning(QUIET, tmp_path), monkeypatch)
    flow.goes_on(1, 9, 0, 1)
    flow.goes_on(9, 10, 0)
    for second in (14, 15, 17.5):
        flow.play.batch(at_ms=ms(second))
    of_window = flow.reported("totals")[10]
    assert of_window["bound", "events"] == 3_000
    silence = [(detail, length_ms) for (owner, detail), length_ms in of_window.items() if owner == "silence"]
    assert silence == [("events/0 idle_advances", 4_000)]
