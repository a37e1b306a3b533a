"""Output of `tidemark path`, `topology` and `whatif` for known plays.

The plays are Apex's worked example and a small topology.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from support.latency_facts import listed
from support.play import Play, ms, tell
from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.cli.explain import path as path_command
from tidemark.cli.explain import topology as topology_command
from tidemark.cli.explain import whatif as whatif_command
from tidemark.cli.main import _parser
from tidemark.control.folder import StreamState
from tidemark.errors import InvalidArgument
from tidemark.facts.interval_facts import page_facts
from tidemark.facts.path_facts import windows_with_paths
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    LATENCY_ROLLUP,
    OPERATOR_WINDOWS,
    WINDOW_PARTS,
)
from tidemark.query.sql import Warehouse
from tidemark.reports.batch_job import topology
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.paths.path_text import judged_windows_text
from tidemark.stream.driver.heartbeats import Heartbeats

NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
WINDOW = {"topology": "flights", "window_start": NOON, "window_end": NOON + 5_000}
UPSTREAM = {"A": None, "B": "A", "C": "A", "D": "B", "E": "C", "F": "C"}
LATENCY = {"A": 0, "B": 5, "C": 100, "D": 30, "E": 20, "F": 2}
SLACK = {"A": 0, "B": 85, "C": 0, "D": 85, "E": 0, "F": 18}
ON_PATH = {"A": 0, "C": 1, "E": 2}
PATH = {
    **WINDOW, "latency_ms": 120, "waited_ms": 0, "queued_ms": 30, "before_source_ms": 2_000, "leaf": "E",
    "path": "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms", "state": "measured", "over_sla": True,
    "verdicts": [
        {"sla": "c_work", "operator": "C", "quantile": None, "limit_ms": 60, "value_ms": 70.0, "broken": True},
        {"sla": "e_in_time", "operator": "E", "quantile": 0.99, "limit_ms": 5_000, "value_ms": 2e3, "broken": False},
    ],
    "leaves": [
        {"leaf": leaf, "source": "A", "latency_ms": ms, "before_source_ms": 2_000, "behind_ms": 120 - ms}
        for leaf, ms in (("E", 120), ("F", 102), ("D", 35))
    ],
    "skew_error_ms": 3, "moving_average_ms": 110, "moving_average_path": "A (0 ms) → C (110 ms) = 110 ms",
}  # fmt: skip


def steps(promised_ms: int) -> list[dict[str, Any]]:
    return [
        {
            **WINDOW, "operator": name, "step": ON_PATH.get(name), "slowest_upstream": read, "kind": "map",
            "sub_topology": "status", "latency_ms": LATENCY[name], "waited_ms": 0,
            "queued_ms": 30 if name == "C" else 0, "worked_ms": LATENCY[name] - (30 if name == "C" else 0),
            "slack_ms": SLACK[name], "promised_ms": promised_ms if name == "C" else None,
            "share": LATENCY[name] / 120 if name in ON_PATH else None, "state": "measured" if read else "input",
        }
        for name, read in UPSTREAM.items()
    ]  # fmt: skip


def parts(*, over: bool) -> list[dict[str, Any]]:
    """Parts of the age of the window at E, in which C worked for 10 ms more than usual."""
    spent = {
        ("bound", "A"): (1_460, 1_460),
        ("next_record", "A/2"): (500, 500),
        ("operator", "C"): (70, 60),
        ("operator", "A"): (40, 40),
        ("target", "journal"): (30, 30),
        ("operator", "E"): (20, 20),
    }
    return [
        {
            **WINDOW,
            "owner": owner,
            "detail": detail,
            "stream": "flights/status" if owner in {"operator", "target"} else None,
            "ms": ms,
            "usual_ms": usual_ms,
            "over_sla": over,
        }
        for (owner, detail), (ms, usual_ms) in spent.items()
    ]


def reported(home: Path, path: dict[str, Any] = PATH, promised_ms: int = 60) -> Path:
    """A home in whose warehouse the example has been reported on."""
    rows = {CRITICAL_PATHS: [path], CRITICAL_PATH_STEPS: steps(promised_ms)}
    rows[WINDOW_PARTS] = parts(over=path["over_sla"])
    for written, of in rows.items():
        write_deltalake(Layout(home / "warehouse").report_table("flights", written.name), rows_of(written, of))
    return home


def told_path(home: Path, *arguments: str) -> str:
    options = _parser().parse_args(["path", "flights", *arguments])
    return path_command.path(options, home / "warehouse", topology("flights"))


def test_a_path_is_printed_as_in_the_worked_example(tmp_path: Path) -> None:
    lines = [line.strip() for line in told_path(reported(tmp_path)).splitlines()]
    when = "flights, window 2026-01-01 12:00:00 to 2026-01-01 12:00:05 (record time)"
    assert lines[0] == f"{when}: 2,120 ms old when E had finished it"
    assert [line.split() for line in lines[1:8]] == [
        ["ms", "usual_ms", "owner", "detail", "stream"],
        ["1,460", "1,460", "bound", "A", "null"],
        ["500", "500", "next_record", "A/2", "null"],
        ["70", "60", "operator", "C", "flights/status"],
        ["40", "40", "operator", "A", "flights/status"],
        ["30", "30", "target", "journal", "flights/status"],
        ["20", "20", "operator", "E", "flights/status"],
    ]
    lines = lines[7:]
    assert lines[1] == "A (0 ms) → C (100 ms) → E (20 ms) = 120 ms"
    columns = ("operator", "kind", "sub_topology", "latency_ms", "waited_ms", "queued_ms", "worked_ms", "promised_ms")
    assert lines[2].split() == [*columns, "share", "state"]
    assert [re.split(" {2,}", line) for line in lines[3:6]] == [
        ["A", "map", "status", "0", "0", "0", "40", "null", "0 %", "input"],
        ["C", "map", "status", "100", "0", "30", "70", "60", "83 %", "measured"],
        ["E", "map", "status", "20", "0", "0", "20", "null", "17 %", "measured"],
    ]
    assert lines[6:13] == [
        "20 + 100 + 0 = 120 ms from E, the critical path",
        "2 + 100 + 0 = 102 ms from F, 18 ms behind: A → C → F",
        "30 + 5 + 0 = 35 ms from D, 85 ms behind: A → B → D",
        "before the source: 2,000 ms from the window's end, not in the sum",
        "of the sum: 0 ms waited, 30 ms queued, 90 ms worked",
        "clocks: right to within 3 ms",
        "moving averages of up to ten windows: A (0 ms) → C (110 ms) = 110 ms",
    ]
    assert [line.split()[0] for line in lines[15:18]] == ["B", "D", "F"]


def test_the_last_line_says_whose_time_was_longer_than_usual(tmp_path: Path) -> None:
    seen = "it took 2,120 ms from the window's end to E"

    def last_line(name: str, **path: Any) -> str:
        return told_path(reported(tmp_path / name, PATH | path)).splitlines()[-1].strip()

    assert last_line("over") == f"{seen}: the operator `C` worked for 70 ms, usually 60 ms"
    assert last_line("kept", over_sla=False) == f"{seen}, and it keeps the limit of each SLA"
    assert last_line("unjudged", over_sla=None, verdicts=None) == f"{seen}, and no SLA judges it"


def test_a_window_that_stands_still_is_not_said_to_be_finished(tmp_path: Path) -> None:
    stuck = told_path(reported(tmp_path, PATH | {"state": "stuck", "over_sla": None, "verdicts": None}))
    assert stuck.splitlines()[0].endswith(": not finished by E")
    assert stuck.splitlines()[-1].strip() == "E has not finished it, and no SLA judges it"


def test_what_is_not_known_of_an_age_is_said(tmp_path: Path) -> None:
    home = reported(tmp_path)
    table = DeltaTable(Layout(home / "warehouse").report_table("flights", WINDOW_PARTS.name))
    said = []
    for removed in ("detail = 'C'", "true"):
        table.delete(removed)
        said.append(told_path(home).splitlines()[-1].strip().partition(": ")[2])
    assert said == ["no part of it is longer than usual", "what it waited for is not known"]


def test_a_path_says_which_slas_judged_it_with_limit_and_value(tmp_path: Path) -> None:
    told = " ".join(told_path(reported(tmp_path)).split())
    assert "The window breaks the limit of SLA c_work: C worked 70 ms on it, and the limit is 60 ms" in told
    assert (
        "The window keeps the limit of SLA e_in_time: the p99 of the latency of its records at E is about 2,000 ms, "
        "and the limit is 5,000 ms"
    ) in told


def test_a_path_in_json_has_leaves_and_operators_off_the_path(tmp_path: Path) -> None:
    told = json.loads(told_path(reported(tmp_path), "--at", "2026-01-01T12:00:04.999Z", "--format", "json"))
    (window,) = told["windows"]
    assert told["topology"] == "flights"
    assert (window["window_start"], window["path"], window["worked_ms"]) == (
        "2026-01-01T12:00:00.000Z", ["A", "C", "E"], 90,
    )  # fmt: skip
    assert [step["operator"] for step in window["steps"] + window["off_path"]] == ["A", "C", "E", "B", "D", "F"]
    assert window["leaves"][2] == {
        "leaf": "D", "source": "A", "latency_ms": 35, "behind_ms": 85, "before_source_ms": 2_000,
        "path": ["A", "B", "D"], "latencies_ms": [0, 5, 30],
    }  # fmt: skip
    assert window["parts"][2] == {
        "owner": "operator", "detail": "C", "stream": "flights/status", "ms": 70, "usual_ms": 60,
    }  # fmt: skip


@pytest.mark.parametrize("instant", ["2026-01-01T11:59:59.999Z", "2026-01-01T12:00:05Z"])
def test_an_instant_outside_of_all_windows_lists_known_windows(tmp_path: Path, instant: str) -> None:
    known = "the closed ones lie between 2026-01-01T12:00:00.000Z and 2026-01-01T12:00:05.000Z; ask for one of them"
    with pytest.raises(InvalidArgument, match=known):
        told_path(reported(tmp_path), "--at", instant)


def test_the_newest_windows_are_at_least_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        told_path(tmp_path, "--last", "0")
    assert "the number of windows must be 1 or more, got '0'" in capsys.readouterr().err


def test_without_a_closed_window_the_next_step_is_printed(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"no report has seen a window of it yet; run the DAG tidemark_flights_reports, .*`tidemark topology",
    ):
        told_path(tmp_path)
    open_path = {**dict.fromkeys(PATH), **WINDOW, "state": "no_window_yet"}
    with pytest.raises(
        InvalidArgument, match=r"since reports have seen 1, of which none .* every operator; `tidemark why flights`"
    ):
        told_path(reported(tmp_path, open_path))


def test_control_characters_are_shown_escaped(tmp_path: Path) -> None:
    hostile = "A\x1b[31m\x9b2J\u202e (0 ms)"
    told = told_path(reported(tmp_path, PATH | {"path": hostile}))
    assert r"A\u001b[31m\u009b2J\u202e (0 ms)" in told
    again = told_path(tmp_path, "--format", "json")
    assert again.replace("\n", "").isprintable()
    assert json.loads(again)["windows"][0]["path_text"] == hostile


PLAY = topology_of(
    {"window": "5 s"},
    events=source(sub_topology="first", idle_after="5 s"),
    newest=table(columns=["v"]),
    by_v=repartition("newest", id=["id"], key=["v"], columns=["v"]),
    counts=aggregate("by_v", sub_topology="second", aggregates={"n": "count(*)"}, select={"n": "n"}),
    out=sink("counts", topic="out"),
)


def told_topology(play: Play, at_ms: int) -> dict[str, Any]:
    at = f"{at_ms // 1_000 - NOON // 1_000:02}"
    options = _parser().parse_args(["topology", "play", "--at", f"2026-01-01T12:00:{at}Z", "--format", "json"])
    told: dict[str, Any] = json.loads(topology_command.topology(options, play.home, play.topology))
    return told


def test_operators_are_listed_with_rates_watermark_and_backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(PLAY, tmp_path)
    first = [play.row("events", NOON + s * 1_000, id=str(s), v=1) for s in range(6)]
    play.batch([*first, play.row("events", NOON + 9, id="0", v=1)], at_ms=NOON + 10_000)  # this one is suppressed
    play.hop("second", at_ms=NOON + 11_000)
    play.batch([play.row("events", NOON + 8_000, id="8", v=2)], at_ms=NOON + 12_000)
    read_to = play.broker.read_to()
    play.broker.have("events", [play.row("events", NOON + 9_000) for _ in range(3)])
    monkeypatch.setattr(play.broker, "read_to", lambda: read_to)
    play.batch(at_ms=NOON + 30_000)  # it has been silent for so long that the broker is asked
    beats = [
        {"topology": "play", "sub_topology": sub, "beat_at": NOON + at, "state": state, "epoch": 1, "batch_id": 0}
        for sub, at, state in (("first", 12_000, "running"), ("second", 11_000, "drained"))
    ]
    for beat in beats:
        path = Layout(tmp_path).stream_table("play", beat["sub_topology"], HEARTBEATS.name)
        write_deltalake(path, rows_of(HEARTBEATS, [beat]), mode="append")

    told = told_topology(play, NOON + 40_000)

    assert [(d["sub_topology"], d["state"], d["last_heartbeat_at"]) for d in told["sub_topologies"]] == [
        ("first", "running", "2026-01-01T12:00:12.000Z"),
        ("second", "drained", "2026-01-01T12:00:11.000Z"),
    ]
    operators = {row["operator"]: row for row in told["operators"]}
    assert list(operators) == ["events", "newest", "by_v", "by_v_source", "counts", "out"]
    assert operators["by_v_source"]["upstreams"] == ["by_v"]
    events, newest, hop = operators["events"], operators["newest"], operators["by_v_source"]
    assert (round(events["records_in_per_s"] * 60), round(newest["records_out_per_s"] * 60)) == (8, 7)
    assert events["watermark"] == "2026-01-01T12:00:06.999Z"  # 8 s − the bound of 1 s − 1 ms
    assert (events["unread_records"], newest["unread_records"], hop["unread_records"]) == (3, None, 1)
    assert (events["moving_average_ms"], events["kind"], newest["kind"]) == (0, "source", "table")


def finished(home: Path, window: int, ewt_ms: dict[str, int]) -> None:
    """Writes a window that operators finished at *ewt_ms* after NOON.

    The operators are those of PLAY; both drivers began their batch at NOON.
    """
    for sub, names in (("first", ("events", "newest", "by_v")), ("second", ("by_v_source", "counts", "out"))):
        rows = [
            {
                "topology": "play", "sub_topology": sub, "batch_id": window, "operator": name, "kind": "map",
                "window_start": NOON + window * 5_000, "window_end": NOON + (window + 1) * 5_000, "queued_ms": 0,
                "ewt_at": NOON + ewt_ms[name], "ewt_adjusted_at": NOON + ewt_ms[name], "batch_started_at": NOON,
            }
            for name in names
        ]  # fmt: skip
        path = Layout(home).stream_table("play", sub, OPERATOR_WINDOWS.name)
        write_deltalake(path, rows_of(OPERATOR_WINDOWS, rows), mode="append")


def told_whatif(play: Play, *arguments: str) -> str:
    options = _parser().parse_args(["whatif", "play", *arguments])
    return whatif_command.whatif(options, play.home, play.topology)


def test_whatif_compares_the_median_and_p90_of_windows(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    for window, worked_ms in enumerate((100, 300, 500)):
        names = {
            "events": 10,
            "newest": 20,
            "by_v": 30,
            "by_v_source": 40,
            "counts": 40 + worked_ms,
            "out": 50 + worked_ms,
        }
        finished(tmp_path, window, names)
    told = json.loads(told_whatif(play, "--operator", "counts", "--scale", "0.5", "--format", "json"))
    # From events to out: 40 ms and what counts worked; of three windows the median is the second, and p90 the third.
    assert (told["compared"], told["other_path"]) == (3, 0)
    assert (told["before"], told["after"]) == ({"median_ms": 340, "p90_ms": 540}, {"median_ms": 190, "p90_ms": 290})
    assert [window["then_latency_ms"] for window in told["windows"]] == [90, 190, 290]
    text = told_whatif(play, "--operator", "counts", "--less", "200 ms", "--to", "2026-01-01T12:00:15Z").splitlines()
    assert text[0] == "play, counts working 200 ms less: 2 windows, 0 with another path"
    assert "includes less waiting for earlier batches" in text[6]
    assert "may begin sooner" in text[6]
    longer = told_whatif(play, "--operator", "counts", "--scale", "2")
    assert (
        "the estimate includes more waiting for earlier batches, which also become longer; longer batches may begin "
        "later and then contain other records"
    ) in longer
    assert "the estimate includes" not in told_whatif(play, "--operator", "counts", "--scale", "1")
    assert [line.split() for line in text[2:5]] == [
        ["latency", "median_ms", "p90_ms"], ["as", "it", "was", "140", "340"], ["then", "40", "140"],
    ]  # fmt: skip


def test_whatif_of_a_source_compares_ages_since_no_path_has_its_work(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    window = {"topology": "play", "window_start": NOON, "window_end": NOON + 5_000}
    path = {**window, "leaf": "out", "latency_ms": 500, "before_source_ms": 3_300}
    spent = {("bound", "events"): 3_000, ("operator", "events"): 300, ("operator", "counts"): 500}
    parts = [{**window, "owner": owner, "detail": detail, "ms": ms} for (owner, detail), ms in spent.items()]
    for written, rows in ((CRITICAL_PATHS, [path]), (WINDOW_PARTS, parts)):
        write_deltalake(Layout(tmp_path).report_table("play", written.name), rows_of(written, rows))
    assert told_whatif(play, "--operator", "events", "--scale", "0.5").split("\n\n")[0] == (
        "play, events working 0.5 times as long: 1 window"
    )
    told = json.loads(told_whatif(play, "--operator", "events", "--less", "100 ms", "--format", "json"))
    assert (told["operator"], told["less_ms"], told["windows"][0]["part_ms"]) == ("events", 100, 300)
    assert (told["before"]["median_ms"], told["after"]["median_ms"]) == (3_800, 3_700)


def test_whatif_refuses_operators_that_it_cannot_compare(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    with pytest.raises(InvalidArgument, match="no operator nobody; known: by_v"):
        told_whatif(play, "--operator", "nobody", "--scale", "2")
    with pytest.raises(InvalidArgument, match="play has none; ask for another interval"):
        told_whatif(play, "--operator", "counts", "--scale", "2")


def test_a_page_has_paths_only_of_its_interval(tmp_path: Path) -> None:
    tables = Warehouse(reported(tmp_path, PATH | {"path": "A \x1b[2J"}) / "warehouse")
    told = page_facts(tables, topology("flights"), Interval(NOON + 5_000, NOON + 6_000))
    assert told.summary == {
        "windows": 1, "over_sla": 1, "promised": 1, "median_ms": 2_120, "p90_ms": 2_120, "max_ms": 2_120,
        "before_source_ms": 2_000.0, "skew_error_ms": 3,
    }  # fmt: skip
    assert told.paths == [{"path": ["A", "C", "E"], "windows": 1, "median_ms": 120.0, "p90_ms": 120, "max_ms": 120}]
    assert (told.operators["D"]["on_path"], told.operators["E"]["on_path"]) == (0, 1)
    assert [(row["path"], row["worked_ms"]) for row in told.slowest] == [(r"A \u001b[2J", 90)]
    before = page_facts(tables, topology("flights"), Interval(NOON, NOON + 5_000))
    assert (before.summary["windows"], before.paths, before.slowest) == (0, [], [])


def test_the_work_of_an_input_is_its_part_of_the_age(tmp_path: Path) -> None:
    home = reported(tmp_path)
    tables = Warehouse(home / "warehouse")
    (window,) = windows_with_paths(tables, "flights")
    told = page_facts(tables, topology("flights"), Interval(NOON + 5_000, NOON + 6_000))
    # Its latency is 0, as in Apex; it worked for 40 ms before the path began.
    assert (window["steps"][0]["operator"], window["steps"][0]["latency_ms"]) == ("A", 0)
    assert window["steps"][0]["worked_ms"] == told.operators["A"]["worked_ms"] == 40
    assert told.operators["C"]["worked_ms"] == 70
    assert told.slowest[0]["longest_part"] == {"owner": "bound", "detail": "A", "stream": None, "ms": 1_460}
    # A part of 0 ms has no row, and without any part of the age it is not known.
    for removed, worked_ms in (("owner = 'operator' AND detail = 'A'", 0), ("true", None)):
        DeltaTable(Layout(home / "warehouse").report_table("flights", WINDOW_PARTS.name)).delete(removed)
        (window,) = windows_with_paths(Warehouse(home / "warehouse"), "flights")
        assert window["steps"][0]["worked_ms"] == worked_ms


def test_a_page_says_how_many_windows_an_sla_did_not_judge(tmp_path: Path) -> None:
    home = reported(tmp_path)
    paths = Layout(home / "warehouse").report_table("flights", CRITICAL_PATHS.name)
    # Two more windows closed: neither has a record of E, and in one of them C worked for 50 ms.
    (work, _) = PATH["verdicts"]
    for number, verdicts in enumerate(([work | {"value_ms": 50.0, "broken": False}], None), start=1):
        ends = {"window_start": NOON + number * 100, "window_end": NOON + 5_000 + number * 100}
        write_deltalake(paths, rows_of(CRITICAL_PATHS, [PATH | ends | {"verdicts": verdicts}]), mode="append")
    told = page_facts(Warehouse(home / "warehouse"), topology("flights"), Interval(NOON + 5_000, NOON + 6_000))
    assert [judged_windows_text(row, "{:g} ms".format) for row in told.judged] == [
        "SLA c_work: 1 of 2 windows broke its limit, and 1 more was not judged, since the work was not measured; "
        "C worked up to 70 ms on a window, and the limit is 60 ms",
        "SLA e_in_time: 0 of 1 window broke its limit, and 2 more were not judged, since no record of these windows "
        "reached E; the p99 of the latency of a window's records at E was at most about 2000 ms, and the limit is "
        "5000 ms",
    ]


def test_a_page_has_the_latencies_of_each_minute_that_its_interval_touches(tmp_path: Path) -> None:
    home, minute_ms = reported(tmp_path), 60_000
    told = {"topology": "flights", "scope": "operator", "operator": "flight_board", "grain": "minute"}
    rows = [
        {**told, "interval_start": NOON + n * minute_ms, "n": 1, "min_ms": length, "max_ms": length}
        | {"buckets": listed([length])}
        for n, length in enumerate((2_950, 1_240, 1_100, 900))
    ]
    path = Layout(home / "warehouse").report_table("flights", LATENCY_ROLLUP.name)
    write_deltalake(path, rows_of(LATENCY_ROLLUP, rows), mode="append")
    # From 12:00:29 until 12:02:23.
    interval = Interval(NOON + 29_000, NOON + 2 * minute_ms + 23_000)
    latencies = page_facts(Warehouse(home / "warehouse"), topology("flights"), interval).latencies
    assert [(row["at_ms"] - NOON, row["p99_ms"]) for row in latencies] == [
        (0, 2_950),
        (minute_ms, 1_240),
        (2 * minute_ms, 1_100),
    ]


def test_a_page_shows_clock_errors_only_if_all_are_known(tmp_path: Path) -> None:
    home = reported(tmp_path)
    other = PATH | {"window_start": NOON + 500, "window_end": NOON + 5_500, "skew_error_ms": None}
    paths = Layout(home / "warehouse").report_table("flights", CRITICAL_PATHS.name)
    write_deltalake(paths, rows_of(CRITICAL_PATHS, [other]), mode="append")
    told = page_facts(Warehouse(home / "warehouse"), topology("flights"), Interval(NOON + 5_000, NOON + 6_000))
    assert (told.summary["windows"], told.summary["skew_error_ms"]) == (2, None)


def test_watermark_lag_grows_until_it_moves_and_idle_spans_end(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    play.batch([play.row("events", NOON, id="0", v=1)], at_ms=NOON + 1_000)
    play.batch(at_ms=NOON + 10_000)  # idle: silent for more than 5 s, and read to its end
    play.batch([play.row("events", NOON + 14_000, id="0", v=2)], at_ms=NOON + 15_000)
    told = page_facts(Warehouse(tmp_path), play.topology, Interval(NOON, NOON + 20_000))
    # The watermark is that of the newest record less the bound of 1 s and 1 ms: NOON − 1,001, then NOON + 12,999.
    lags = [(row["at_ms"] - NOON, row["lag_ms"]) for row in told.lags if row["source"] == "events"]
    assert lags[0] == (1_000, 2_001)
    assert (15_000, 16_001) in lags
    assert lags[-1] == (20_000, 7_001)
    spans = [(row["activity"], row["at_ms"] - NOON, row["until_ms"] - NOON) for row in told.spans]
    assert spans == [("idle", 10_000, 15_000)]
    assert [(row["operator"], row["at_ms"] - NOON, row["emitted"]) for row in told.emission[-2:]] == [
        ("newest", 1_000, 1), ("newest", 15_000, 1),
    ]  # fmt: skip


def test_lags_and_idle_spans_end_with_the_stream_on_every_page(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    play.batch([play.row("events", NOON, id="0", v=1)], at_ms=NOON + 1_000)
    play.batch(at_ms=NOON + 10_000)
    # The driver looked again until it was drained 2 s later.
    history = Heartbeats(tmp_path / "streams" / "play" / play.sub, topology="play", sub_topology=play.sub)
    tell(history, (NOON - ms(0)) / 1_000 + 12, StreamState.DRAINED)
    for end_ms in (20_000, 3_600_000):
        told = page_facts(Warehouse(tmp_path), play.topology, Interval(NOON, NOON + end_ms))
        assert max(row["lag_ms"] for row in told.lags if row["source"] == "events") == 13_001
        spans = [(row["activity"], row["at_ms"] - NOON, row["until_ms"] - NOON) for row in told.spans]
        assert spans == [("idle", 10_000, 12_000)]
    # An interval that ends before has what was so until then.
    told = page_facts(Warehouse(tmp_path), play.topology, Interval(NOON, NOON + 11_000))
    assert told.spans[0]["until_ms"] - NOON == 11_000


def test_a_page_of_a_day_that_goes_on_contains_the_lags_of_an_interval_of_it(tmp_path: Path) -> None:
    play = Play(PLAY, tmp_path)
    play.batch([play.row("events", NOON, id="0", v=1)], at_ms=NOON + 1_000)
    tables, day = Warehouse(tmp_path), Interval(NOON - 43_200_000, NOON + 43_200_000)
    # Until 12:00:20 the watermark stays at NOON − 1,001; what comes later is not known yet.
    for interval in (Interval(NOON, NOON + 20_000), day, Interval(NOON, NOON + 30_000)):
        told = page_facts(tables, play.topology, interval, now_ms=NOON + 20_000)
        assert max(row["lag_ms"] for row in told.lags if row["source"] == "events") == 21_001


def test_tiles_and_charts_of_a_page_have_the_same_medians(tmp_path: Path) -> None:
    home = reported(tmp_path)
    paths = Layout(home / "warehouse").report_table("flights", CRITICAL_PATHS.name)
    # The ages are 2,120 ms of the example, and 2,300, 2,700 and 9,000 ms.
    for number, before_ms in enumerate((2_180, 2_580, 8_880), start=1):
        ends = {"window_start": NOON + number * 100, "window_end": NOON + 5_000 + number * 100}
        other = PATH | ends | {"before_source_ms": before_ms}
        write_deltalake(paths, rows_of(CRITICAL_PATHS, [other]), mode="append")
    day = Interval(NOON - 43_200_000, NOON + 43_200_000)
    told = page_facts(Warehouse(home / "warehouse"), topology("flights"), day)
    summary, (spent,) = told.summary, told.spent
    # Of four windows the median is the second, and p90 the fourth: three would be 75 %.
    assert [summary[f"{name}_ms"] for name in ("median", "p90", "max", "before_source")] == [2_300, 9_000, 9_000, 2_180]
    assert (spent["age_ms"], spent["longest_ms"]) == (summary["median_ms"], summary["max_ms"])


def test_a_folder_gets_pages_of_hour_and_day_and_a_file_one(tmp_path: Path) -> None:
    tables, hour = Warehouse(reported(tmp_path) / "warehouse"), Interval(NOON, NOON + 3_600_000)
    folder, file = tmp_path / "html", tmp_path / "elsewhere" / "one.html"
    for _ in range(2):
        write_pages(tables, topology("flights"), hour, folder)
    assert sorted(page.name for page in folder.iterdir()) == ["2026-01-01.html", "2026-01-01T12.html"]
    assert all("1 of 1 window broke the limit of an SLA." in page.read_text() for page in folder.iterdir())
    assert write_pages(tables, topology("flights"), Interval(NOON - 3_600_000, NOON), file) == [file]
    assert "No streaming window that ends in this time" in file.read_text()
