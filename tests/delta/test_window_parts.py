"""Promises about records are judged by records, and each on the path of the operator that they are about."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from playing import NEWEST, NOON, Ends, Play, ms, tell

import critical_path
from tidemark.report.report_tables import opened
from tidemark.spec.intervals import Interval
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import parse
from tidemark.spec.tables import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.stream import decision
from tidemark.stream.heartbeats import Heartbeats
from tidemark.why.findings import Cause
from tidemark.why.walk import why

BOARD = NEWEST.replace('bound = "1 s"', 'bound = "3 s"')
BESIDE = BOARD.replace("[operators.board]", """
[operators.slow]
kind = "table"
input = "events"
key = ["id"]
columns = ["v"]
[operators.board]""")  # fmt: skip
COUNTS = f"""{BOARD}
[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "5 s" }}
aggregates = {{ n = "count(*)" }}
strategy = "on_window_close"
[operators.totals]
kind = "sink"
input = "counts"
table = "totals"
"""


def promise(subject: str) -> dict[str, dict[str, str]]:
    limits = {"subject": subject, "measure": "latency_p99", "error_after": "4 s", "owner": "o"}
    return {"in_time": limits}


class Played:
    """A topology of two partitions, one batch a second, whose clock goes on while operators are slow."""

    def __init__(self, toml: str, home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.play = Play(toml, home, partitions=2)
        self.play.broker = Ends(2)
        monkeypatch.setattr(decision, "time", SimpleNamespace(sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.play.now_ms += round(seconds * 1_000)

    def goes_on(self, first_s: int, last_s: int, *parts: int, every_s: int = 1) -> None:
        """A batch each *every_s* with a record of each of *parts*, which is 200 ms old."""
        for second in range(first_s, last_s, every_s):
            self.play.batch(
                [self.play.row("events", ms(second - 0.2), partition=part, id="ab"[part], v=second) for part in parts],
                at_ms=ms(second),
            )

    def reported(self, subject: str) -> tuple[list, list]:
        """The paths, and the parts at *subject*, in the order of windows."""
        play, layout = self.play, Layout(self.play.home)
        specs = parse({"play": promise(subject)}, play.topology, file="slas.toml")
        critical_path.run(layout, play.topology, specs, Interval(NOON, NOON + 3_600_000))
        paths, parts = (
            opened(table, layout.report_table("play", table.name)).to_pyarrow_table().to_pylist()
            for table in (CRITICAL_PATHS, WINDOW_PARTS)
        )
        paths = sorted((row for row in paths if row["latency_ms"] is not None), key=lambda row: row["window_end"])
        ordered = sorted(parts, key=lambda row: row["window_end"])
        return paths, [row for row in ordered if row["subject"] == subject]


def blamed(parts: list) -> list[str]:
    """Who is to blame for each window over its promise."""
    worst = {}
    for row in parts:
        if row["over_sla"] and row["excess_ms"] > worst.get(row["window_end"], row)["excess_ms"] - 1e-9:
            worst[row["window_end"]] = row
    return [row["operator"] for row in worst.values()]


def test_quick_records_keep_a_promise_shorter_than_windows_age(tmp_path, monkeypatch):
    flow = Played(BOARD, tmp_path, monkeypatch)
    flow.goes_on(1, 15, 0, 1)
    paths, parts = flow.reported("board")
    assert [(row["before_source_ms"], row["over_sla"]) for row in paths] == [(4_000, False)]
    # it ended at 12:00:10; the record of 13.8 s was the first beyond the bound, and its batch began at 14 s
    assert {row["operator"]: row["ms"] for row in parts} == {"bound": 3_000, "blocking_partition": 800, "trigger": 200}


def test_a_slow_operator_is_to_blame_and_not_the_bound(tmp_path, monkeypatch):
    flow = Played(BOARD, tmp_path, monkeypatch)
    flow.goes_on(1, 12, 0, 1)
    flow.play.slow_ms = {"newest": 4_500}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    paths, parts = flow.reported("board")
    assert paths[0]["over_sla"] is False
    assert paths[-1]["over_sla"] is True
    assert set(blamed(parts)) == {"newest"}


def test_a_slow_sibling_is_to_blame_and_not_who_queued(tmp_path, monkeypatch):
    flow = Played(BESIDE, tmp_path, monkeypatch)
    flow.goes_on(1, 12, 0, 1)
    flow.play.slow_ms = {"slow": 4_500}
    flow.play._engines.clear()
    flow.goes_on(16, 40, 0, 1, every_s=5)
    _, parts = flow.reported("board")
    assert set(blamed(parts)) == {"slow"}


def test_a_silent_partition_is_named_where_results_wait(tmp_path, monkeypatch):
    flow = Played(COUNTS, tmp_path, monkeypatch)
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


SILENCES = {
    "stopped": (None, "backlog", 30),  # its beats end, too
    "hung": (31, "backlog", 31),  # they go on while a batch is running since 12:00:31
    "waiting": (None, "late_producer", None),
}
"""By what the driver did from 12:00:30 to 12:01:10: when its batch began, whom to blame, and since when it is known."""


@pytest.mark.parametrize("name", SILENCES)
def test_who_is_to_blame_for_what_came_after_a_silence(tmp_path, monkeypatch, name):
    batch_s, culprit, since_s = SILENCES[name]
    flow = Played(BOARD, tmp_path, monkeypatch)
    topology, layout = flow.play.topology, Layout(tmp_path)
    (sub,) = topology.sub_topologies
    beats = Heartbeats(layout.stream("play", sub.name), topology="play", sub_topology=sub.name)
    flow.goes_on(1, 31, 0, 1)
    for second in [*range(31), *(range(31, 70) if name != "stopped" else []), 70]:
        tell(beats, second, batch_s=batch_s if 30 < second < 70 else None)
    assert [finding.cause for finding in why(topology, layout, at_ms=ms(69))] == (
        [Cause.NOTHING_WRONG] if since_s is None else [Cause.BACKLOG]
    )
    waited = [
        flow.play.row("events", ms(s), partition=part, id="ab"[part], v=s) for s in range(31, 70) for part in (0, 1)
    ]
    flow.play.batch(waited, at_ms=ms(70))
    _, parts = flow.reported("board")
    # the window until 12:00:30 waited for the first record of 33 s or later, which was read at 70 s, a trigger later
    of_window = {row["operator"]: (row["ms"], row["input"]) for row in parts if row["window_end"].second == 30}
    assert (set(blamed(parts)), of_window[culprit][0]) == ({culprit}, 36_000)
    if since_s is not None:
        seen = (
            f"nothing was read from 2014-05-13T12:00:{since_s}.000Z to 2014-05-13T12:01:10.000Z, and 78 records waited"
        )
        assert of_window[culprit][1] == f"driver of {sub.name}: {seen}"
        for at_s in (40, 69, 71):
            (finding, *_) = why(topology, layout, at_ms=ms(at_s))
            assert (finding.cause, finding.since_ms, seen in finding.seen) == (Cause.BACKLOG, ms(since_s), True)
