"""Checks the document of a topology: verdict, streams, newest result, reasons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from critical_path import run
from support.play import Play, bad, ms, tell
from support.quiet_broker import Ends
from support.reported_window import reported
from support.topologies import NEWEST, aggregate, join, map_of, operators, repartition, sink, source, table, topology_of
from tidemark.cli.explain.status import as_text
from tidemark.cli.explain.topology import as_text as topology_as_text
from tidemark.control.folder import Heartbeat, StreamState
from tidemark.facts.history import history
from tidemark.facts.latency_places import ChartSpan
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import ALERTS, INCIDENTS, SLA_RESULTS
from tidemark.model.topology import load
from tidemark.query import stored_tables
from tidemark.query.sql import QueryResult, Warehouse
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.documents.why import why_document
from tidemark.reports.pages.page_model import document, page_model
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_page import operator_page, start_page, topology_page
from tidemark.reports.pages.topology_state import TopologyState
from tidemark.reports.promises import Promises, promises
from tidemark.sla.page import sla_page
from tidemark.storage.delta import datasets
from tidemark.storage.delta.snapshots import ReadLog
from tidemark.stream.driver.heartbeats import Heartbeats
from tidemark.stream.journal import unflushed
from tidemark.stream.journal.entries import Entry, Journal
from tidemark.why.evidence.findings import WhyFinding
from tidemark.why.walk import Walk, scene

NOTHING = Promises()
TOML_WITH_PATHS = NEWEST.replace('name = "play"', 'name = "play"\nlevel = "info"')
FINISHED = 1_767_268_800_000 + 5_000 + 1_400  # the window's end, and its age at its leaf


def played(home: Path) -> Play:
    """Two results at second 10, and one record that cannot be read."""
    play = Play(NEWEST, home)
    rows = [play.row("events", ms(k), key=name, id=name, v=k) for k, name in enumerate("ab")]
    play.batch([*rows, bad("malformed_json")(play)], at_ms=ms(10))
    return play


def beats(play: Play) -> Heartbeats:
    (sub,) = play.topology.sub_topologies
    return Heartbeats(Layout(play.home).stream("play", sub.name), topology="play", sub_topology=sub.name)


def checked(home: Path, at_s: float, measure: str = "staleness", **verdicts: str) -> None:
    """Writes a check at *at_s* with verdicts by SLA about `board`."""
    run = {"topology": "play", "subject": "board", "measure": measure, "checked_at": ms(at_s), "run_id": str(at_s)}
    rows = [
        {**run, "sla": sla, "verdict": verdict, "message": f"{sla} is {verdict}"} for sla, verdict in verdicts.items()
    ]
    path = Layout(home).report_table("play", SLA_RESULTS.name)
    write_deltalake(path, rows_of(SLA_RESULTS, rows), mode="append")


def model(play: Play, at_s: float, promised: Promises = NOTHING) -> dict[str, Any]:
    return page_model(Warehouse(play.home), Layout(play.home), play.topology, promised, at_ms=ms(at_s))


def standing(play: Play, at_s: float) -> tuple[str, str, str | None]:
    """Verdict, state and cause."""
    found = model(play, at_s)
    return found["verdict"], found["state"], found["cause"] and found["cause"]["cause"]


def test_a_stream_that_keeps_up_is_on_time(tmp_path: Path) -> None:
    play = played(tmp_path)
    tell(beats(play), 12)
    assert standing(play, 13) == ("not_checked", "running", None)
    # That a contract holds and an operator is quick does not say that results are in time.
    checked(tmp_path, 11, measure="contract", kept="pass")
    checked(tmp_path, 11.5, measure="operator_latency_p50", quick="pass")
    assert model(play, 13)["verdict"] == "not_checked"
    checked(tmp_path, 12, fresh="pass")
    found = model(play, 13)
    assert (found["verdict"], found["cause"]) == ("on_time", None)
    assert (found["newest_result_at"], found["newest_result_age_ms"]) == (utc(ms(10)), 3_000)
    assert (found["records_in"], found["quarantined"], found["late"]) == (3, 1, 0)
    assert (found["quarantined_last_hour"], found["late_last_hour"]) == (1, 0)
    assert (found["path"], found["report"]) == (None, None)
    assert found["operators"]["board"]["verdict"] == "on_time"


def test_a_page_has_one_reading_of_a_driver_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(NEWEST, tmp_path)
    play.broker = ends = Ends(1)
    ends.ends = {0: 9}
    play.batch([play.row("events", ms(9), key="a", id="a", v=1)], at_ms=ms(10))
    tell(beats(play), 5, records_behind=70)
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(12.9), pid=1)
    play.control.acquire()
    play.control.beat(beat)
    explain = Walk.explain

    def meanwhile(walk: Walk, operator: str | None = None) -> list[WhyFinding]:
        """Another batch, which finished before the page's instant, is written while the page is read."""
        found = explain(walk, operator)
        play.batch([play.row("events", ms(11), key="b", id="b", v=2)], at_ms=ms(12))
        return found

    monkeypatch.setattr(Walk, "explain", meanwhile)
    tables, layout, at_ms = Warehouse(tmp_path, topology="play"), Layout(tmp_path), ms(13)
    found = page_model(tables, layout, play.topology, NOTHING, at_ms=at_ms)
    facts = topology_facts(tables, scene(play.topology, layout, at_ms, stored=tables.stored))
    (stream,), (partition,), by_name = found["streams"], found["partitions"], facts["operators"]
    assert (found["records_in"], stream["records_in"]) == (1, 1)
    assert found["newest_result_at"] == stream["last_batch_at"] == utc(ms(10))
    # The bound is a second, and a watermark 1 ms before it. Of 9 records the batch has read one.
    assert (by_name[0]["watermark"], by_name[0]["unread_records"]) == (utc(ms(8) - 1), 8)
    assert (partition["watermark"], partition["unread"], stream["records_behind"]) == (utc(ms(8) - 1), 8, 8)
    assert (facts["sub_topologies"][0]["last_batch_id"], stream["last_heartbeat_at"]) == (0, utc(ms(12.9)))
    # Who reads later sees both batches.
    monkeypatch.undo()
    assert model(play, 13)["records_in"] == 2
    # A scene has the heartbeat of its instant, though the driver beats on.
    at = scene(play.topology, layout, at_ms)
    play.control.beat(replace(beat, at_ms=ms(14)))
    heard = at.facts["events"].driver.beat
    assert heard is not None
    assert heard.at_ms == ms(12.9)


def test_a_topology_is_told_with_its_newest_heartbeat_batch_and_window(tmp_path: Path) -> None:
    play = Play(TOML_WITH_PATHS, tmp_path)
    play.control.acquire()
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(2), pid=1)
    play.control.beat(beat)

    def head(at_s: float) -> list[str]:
        lines = topology_as_text(topology_document(tmp_path, play.topology, at_ms=ms(at_s))).splitlines()
        return [lines[1], lines[3]]

    assert head(3) == [
        "critical path: no window is closed yet",
        "events: running, last heartbeat 2014-05-13 12:00:02, no batch yet",
    ]
    for at_s in (10, 20, 30):
        play.batch([play.row("events", ms(at_s - 1), key="a", id="a", v=at_s)], at_ms=ms(at_s))
    tell(beats(play), 15)
    play.control.beat(replace(beat, at_ms=ms(30.5)))
    path, driver = head(31)
    # No report has run, and the page draws this path as well.
    live = model(play, 31)["path"]
    assert path == (
        f"critical path of a window that was {live['age_ms']:,} ms old when board had finished it, "
        f"{live['finished_ago_ms'] / 1_000:,.0f} s ago: {live['path_text']}"
    )
    assert driver == "events: running, last heartbeat 2014-05-13 12:00:30, batch 2"


def test_the_newest_check_decides_and_its_subject_shows_it(tmp_path: Path) -> None:
    play = played(tmp_path)
    tell(beats(play), 12)
    checked(tmp_path, 11, fresh="pass", small="warn")
    assert standing(play, 13)[0] == "warn"
    checked(tmp_path, 12, fresh="error", small="warn")
    found = model(play, 13)
    assert (found["verdict"], found["slas"]["broken"], found["slas"]["warned"]) == ("broken", 1, 1)
    assert {name: row["verdict"] for name, row in found["operators"].items()} == {
        "events": "not_checked", "newest": "not_checked", "board": "broken",
    }  # fmt: skip
    assert found["operators"]["board"]["slas"] == ["fresh", "small"]


def test_results_that_are_ten_minutes_old_are_not_on_time_because_no_rule_limits_that(tmp_path: Path) -> None:
    """A source that may be idle for long is not called quiet by any rule, but its topic usually has more records."""
    toml = topology_of(
        events=source(idle_after="20 min"), newest=table(columns=["v"]), board=sink("newest", table="board")
    )
    play = Play(toml, tmp_path)
    for second in range(1, 40):
        play.batch([play.row("events", ms(second), key="a", id="a", v=second)], at_ms=ms(second + 0.5))
    tell(beats(play), 41)
    checked(tmp_path, 40, fresh="pass")
    assert standing(play, 41) == ("on_time", "running", None)
    tell(beats(play), 639)
    checked(tmp_path, 639, fresh="pass")
    assert standing(play, 640) == ("quiet", "running", "topic")
    assert {cause["cause"] for cause in model(play, 640)["causes"] if cause["owner"] is None} == set()


def test_results_are_late_if_somebody_keeps_them_waiting_though_no_rule_calls_it_a_fault(tmp_path: Path) -> None:
    """The batch has been running for 70 s, and with such a trigger only one of 100 s is a slow batch."""
    toml = topology_of(
        {"trigger": "50 s"}, events=source(), newest=table(columns=["v"]), board=sink("newest", table="board")
    )
    play = Play(toml, tmp_path)
    for second in range(1, 40):
        play.batch([play.row("events", ms(second), key="a", id="a", v=second)], at_ms=ms(second + 0.5))
    tell(beats(play), 109, batch_s=40, batch_id=39)
    checked(tmp_path, 109, fresh="pass")
    assert standing(play, 110) == ("late", "running", "driver")


def test_an_overdue_check_does_not_describe_the_present(tmp_path: Path) -> None:
    play = played(tmp_path)
    tell(beats(play), 12)
    checked(tmp_path, 12, fresh="pass")
    overdue_s = 12 + 2 * 600 + 1
    tell(beats(play), overdue_s)
    found = model(play, overdue_s)
    assert (found["slas"]["is_overdue"], found["verdict"]) == (True, "quiet")
    told = "ts SLAs were not checked lately: the DAG tidemark_play_sla_check does so, unless it is paused."
    tables = Warehouse(tmp_path, topology="play")
    facts = topology_facts(tables, scene(play.topology, Layout(tmp_path), ms(overdue_s), stored=tables.stored))
    assert f"<p>I{told}</p>" in topology_page(found, facts, play.topology)
    assert f" I{told}</p>" in sla_page(tmp_path, "play", found)


def test_the_cause_of_no_new_records_is_not_what_becomes_of_records(tmp_path: Path) -> None:
    """`newest` suppresses all that came since its first result; what matters is that nothing comes."""
    play = Play(NEWEST + operators(seen=sink("events", table="seen")), tmp_path)
    for second in range(1, 40):
        play.batch([play.row("events", ms(second), key="a", id="a", v=1)], at_ms=ms(second))
    tell(beats(play), 200)
    found = model(play, 201)
    remarks = [cause["cause"] for cause in found["causes"] if cause["owner"] is None]
    assert (found["verdict"], remarks[0], found["cause"]["cause"]) == ("quiet", "all_suppressed", "source_quiet")
    owners = {(cause["operator"], cause["owner"]) for cause in found["causes"] if cause["owner"] is not None}
    assert owners == {("board", "operator"), ("seen", "topic")}


def test_dead_producers_are_quiet_and_then_break_the_sla(tmp_path: Path) -> None:
    play = played(tmp_path)
    tell(beats(play), 199)
    assert standing(play, 200) == ("quiet", "running", "source_quiet")
    assert model(play, 200)["operators"]["events"]["verdict"] == "quiet"
    checked(tmp_path, 199, fresh="error")
    assert standing(play, 200) == ("broken", "running", "source_quiet")


DRAINED = (
    "the driver of events was drained by tidemark down at 2014-05-13T12:01:20.000Z",
    "tart the driver of events: `tidemark up play` (in another Airflow `airflow dags unpause tidemark_play_streams && ",
)
"""When a stream was drained and by whom, and how it is started."""


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("at_s", [85, 4_000])
def test_a_drained_stream_is_told_everywhere_and_explains_no_sla_that_was_broken_before(
    tmp_path: Path, at_s: float, *, broken: bool
) -> None:
    """A silent partition holds windows open, and records wait unread; both began before the drain."""
    toml = topology_of(
        events=source("id string, v int"),
        per_minute=aggregate(
            "events", key=["id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_window_close"
        ),
        board=sink("per_minute", table="board"),
    )
    play = Play(toml, tmp_path, partitions=2)
    play.broker = ends = Ends(2)
    ends.ends = {0: 900, 1: 0}
    for at, part in ((5, 0), (5, 1), (65, 0)):
        play.batch([play.row("events", ms(at), partition=part, key="a", id="a", v=at)], at_ms=ms(at + 1))
    beat = Heartbeat(state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=ms(70), pid=1)
    play.control.acquire()
    checked(tmp_path, 69, fresh="error" if broken else "pass", **{f"sla_{number}": "pass" for number in range(6)})
    play.control.beat(beat)
    running = model(play, 71)
    assert (running["cause"]["owner"], running["cause"]["cause"]) == ("capacity", "capacity")
    assert "backlog" in {cause["cause"] for cause in running["causes"]}
    play.control.beat(replace(beat, state=StreamState.DRAINED, at_ms=ms(80), drained_by="tidemark down"))
    play.control.release()

    tables, at_ms = Warehouse(tmp_path, topology="play"), ms(at_s)
    found = page_model(tables, Layout(tmp_path), play.topology, NOTHING, at_ms=at_ms, operator="board")
    facts = topology_facts(tables, scene(play.topology, Layout(play.home), at_ms, stored=tables.stored))
    past = history(tables, "play", ["board"], ChartSpan.HOUR, at_ms=at_ms)
    why = why_document(tmp_path, play.topology, at_ms=at_ms).findings
    assert (why[0].cause, why[0].seen, why[0].remedy[1:].startswith(DRAINED[1])) == ("drained", DRAINED[0], True)
    assert "driver_dead" not in {finding.cause for finding in why}
    assert (found["state"], found["cause"]["cause"]) == ("drained", "drained")
    shown = topology_page(found, facts, play.topology)
    banner = " ".join(re.sub("<.*?>", " ", shown.partition("<section")[2].partition("</section>")[0]).split())
    others = [
        start_page([found], folder=tmp_path),
        operator_page(found, facts, play.topology, "board", past, ()),
    ]
    on_pages = DRAINED[0].replace("T12:01:20.000Z", " 12:01:20")
    for page in (shown, *others):
        assert on_pages[1:] in page
        assert ('class="badge red"' in page) is broken
    stream = {**found["streams"][0], "first_latency_ms": None, "ambiguous_keys": None}
    status = as_text([{**found, "page": None, "streams": [stream]}]).splitlines()[-1]
    told = f"{DRAINED[0]}; s{DRAINED[1]}"
    if broken:
        assert "1 of 7 SLAs broken: fresh: fresh is error. There is no result yet." in banner
        assert status.startswith(f"play: broken: fresh: fresh is error; {told}")
    else:
        assert banner.partition(">")[2].strip().startswith("Not running. There is no result yet.")
        assert status.startswith(f"play: not_running: {told}")
        assert "red" not in re.findall(r'class="verdict-of-all (\w+)"', shown)
    assert f"T{on_pages[1:]}. S{DRAINED[1][:26]}" in banner


def test_a_topology_without_results_is_not_on_time_after_a_restart(tmp_path: Path) -> None:
    """No SLA is broken: what the check measured are results from before the driver ended."""
    play = Play(NEWEST, tmp_path)
    for second in range(1, 40):
        play.batch([play.row("events", ms(second), key="a", id="a", v=second)], at_ms=ms(second + 0.5))
    tell(beats(play), 41)
    checked(tmp_path, 640, measure="latency_p99", quick="pass")
    tell(beats(play), 641, StreamState.STARTING, epoch=2)
    assert standing(play, 642) == ("not_checked", "starting", "driver_starting")
    play.batch([], at_ms=ms(643))
    tell(beats(play), 644, epoch=2, batch_id=39)
    found = model(play, 645)
    assert [(cause["cause"], cause["operator"]) for cause in found["causes"]] == [("source_quiet", "board")]
    assert found["verdict"] == "quiet"


def test_a_table_whose_records_lead_nowhere_is_on_time(tmp_path: Path) -> None:
    """A condition has left out all records of a minute, as that of a table of rare events does."""
    toml = topology_of(events=source(), large=map_of(where="v > 9", select={"v": "v"}), board=sink("large", table="b"))
    play = Play(toml, tmp_path)
    for second in range(1, 110):
        v = 10 if second < 45 else 0
        play.batch([play.row("events", ms(second), key="a", id="a", v=v)], at_ms=ms(second + 0.5))
    tell(beats(play), 110)
    checked(tmp_path, 110, measure="latency_p99", quick="pass")
    found = model(play, 111)
    assert (found["verdict"], found["causes"][0]["owner"]) == ("on_time", "operator")


def test_a_batch_of_more_than_five_minutes_hangs(tmp_path: Path) -> None:
    play = played(tmp_path)
    tell(beats(play), 400, batch_s=110)
    assert model(play, 401)["state"] == "running"
    tell(beats(play), 415, batch_s=110)
    assert standing(play, 416) == ("not_running", "stuck", "slow_batch")


def test_a_topology_that_never_ran_has_a_document(tmp_path: Path) -> None:
    found = model(Play(NEWEST, tmp_path), 0)
    assert (found["verdict"], found["state"], found["cause"]["cause"]) == (
        "not_running", "never_started", "never_started",
    )  # fmt: skip
    assert (found["newest_result_at"], found["newest_result_age_ms"], found["records_in"]) == (None, None, 0)


def test_the_path_has_the_whole_age_and_its_own_age(tmp_path: Path) -> None:
    flights = load(CHECKOUT / "jobs" / "topologies" / "flights.toml")
    layout = Layout(reported(tmp_path))
    layout.report_pages("flights").mkdir(parents=True)
    for name in ("2026-01-01", "2026-01-01T11", "2026-01-01T12", "slas"):
        (layout.report_pages("flights") / f"{name}.html").touch()
    found = page_model(Warehouse(tmp_path), layout, flights, NOTHING, at_ms=FINISHED + 60_000)
    assert (found["path"]["age_ms"], found["path"]["leaf"]) == (1_400, "carrier_delays")
    assert (found["path"]["finished_at"], found["path"]["finished_ago_ms"]) == (utc(FINISHED), 60_000)
    assert found["report"] == "2026-01-01T12"


def test_a_start_with_a_backlog_is_named_as_such(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path)
    play.batch([play.row("events", ms(k), key="a", id="a", v=k) for k in range(60)], at_ms=ms(600))
    run(Layout(tmp_path), play.topology, [], Interval(ms(0), ms(3_600)))
    path = model(play, 601)["path"]
    # Nobody had looked before, so that it is not known how long records had waited.
    assert [(part["owner"], part["detail"], part["ms"]) for part in path["spent"]] == [
        ("unknown", "arrival", 549_000),
        ("bound", "events", 1_000),
    ]


HOPS = topology_of(
    {"window": "5 s"},
    events=source(),
    newest=table(columns=["v"]),
    by_id=repartition("newest", key=["id"], id=["id"], columns=["v"]),
    ever=aggregate("by_id", aggregates={"ids": "count(*)"}),
    ever_board=sink("ever", table="ever_board"),
)


def hopping(home: Path, seconds: int, *, read_until: int) -> Play:
    """A record each 5 s; the hop is read until *read_until*."""
    play = Play(HOPS, home)
    for k in range(0, seconds, 5):
        play.batch([play.row("events", ms(k), key="a", id="a", v=k)], at_ms=ms(k + 1))
        if k < read_until:
            play.hop(play.topology.sub_topologies[1].name, at_ms=ms(k + 2))
    return play


@pytest.fixture(scope="module")
def read_whole(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """30 s, all of them read; tests copy it."""
    return hopping(tmp_path_factory.mktemp("read_whole"), 30, read_until=30)


def test_a_window_has_the_path_that_a_report_will_find(tmp_path: Path, read_whole: Play) -> None:
    play = read_whole.copied_to(tmp_path / "copy")
    live = model(play, 40)["path"]
    run(Layout(play.home), play.topology, [], Interval(ms(0), ms(3_600)))
    reported_path = model(play, 40)["path"]
    assert (live["is_live"], reported_path["is_live"]) == (True, False)
    same = ("window_end", "path", "latency_ms", "age_ms", "before_source_ms", "leaf", "state", "finished_ago_ms")
    assert {name: live[name] for name in same} == {name: reported_path[name] for name in same}
    walk = ["events", "newest", "by_id", "by_id_source", "ever", "ever_board"]
    # The newest record is of second 25, the bound 1 s: that batch, at second 26, closes the window until 20 s.
    assert (live["path"], live["window_end"]) == (walk, utc(ms(20)))
    # The source finished it at 26 s and the sink at 27 s: 6 s before the path, and 1 s on it.
    assert (live["before_source_ms"], live["latency_ms"], live["finished_ago_ms"]) == (6_000, 1_000, 13_000)
    # The record of second 25 was the first beyond the bound. A look found it a second later, and the hop was read a
    # second after that.
    spent = [
        ("next record: `events` partition 0", 4_000),
        ("bound: `events`", 1_000),
        ("producer: `events` partition 0", 1_000),
        ("trigger: `play/by_id`", 1_000),
    ]
    assert live["spent"] == reported_path["spent"]
    assert [(row["part"], row["ms"]) for row in live["spent"]] == spent


@pytest.mark.parametrize(
    ("slas", "limit_ms", "is_over"),
    [
        # The newest closed window has the record of second 15: the sink finishes it at 17 s.
        ({"ever_board": {"measure": "latency_p99", "error_after": "1 s"}}, 1_000, True),
        ({"ever_board": {"measure": "latency_p99", "error_after": "3 s"}}, 3_000, False),
        # The clock of a play stands still within a batch, so an operator works for 0 ms.
        pytest.param(
            {"ever": {"measure": "operator_latency_p50", "error_after": "1 ms"}}, 1, False, marks=pytest.mark.long
        ),
        ({}, None, None),
    ],
)
def test_a_live_path_is_judged_as_a_report_judges_it(
    tmp_path: Path, read_whole: Play, slas: dict[str, dict[str, str]], limit_ms: int | None, *, is_over: bool | None
) -> None:
    play = read_whole.copied_to(tmp_path / "copy")
    table = {subject: {"subject": subject, "owner": "o", **keys} for subject, keys in slas.items()}
    specs = parse({"play": table}, play.topology, file="slas.toml") if slas else ()
    live = model(play, 40, promises(specs))["path"]
    run(Layout(play.home), play.topology, specs, Interval(ms(0), ms(3_600)))
    reported_path = model(play, 40)["path"]
    assert (live["is_live"], reported_path["is_live"]) == (True, False)
    for path in (live, reported_path):
        assert path["over_sla"] == is_over
        assert [row["limit_ms"] for row in path["verdicts"] or ()] == ([] if limit_ms is None else [limit_ms])
    assert live["verdicts"] == reported_path["verdicts"]


def test_a_stream_that_stands_still_is_stuck_on_the_path(tmp_path: Path) -> None:
    play = hopping(tmp_path, 60, read_until=15)
    found = model(play, 60)
    # The second stream has the windows until 5 s. The first closed the next one at 16 s.
    assert found["operators"]["by_id_source"]["stuck_ms"] == 44_000
    assert found["path"]["path"] == ["events", "newest", "by_id", "by_id_source", "ever", "ever_board"]
    assert (found["path"]["state"], found["path"]["is_live"]) == ("stuck", True)
    assert found["operators"]["newest"]["stuck_ms"] is None
    # The window until 10 s waited from 11 s, its end and the bound, for the record of 15 s, whose batch began at 16 s.
    # The hop's reader shows no sign of life since, and the window is 50 s old.
    spent = [("absence", 44_000), ("next_record", 4_000), ("bound", 1_000), ("producer", 1_000)]
    assert [(row["owner"], row["ms"]) for row in found["path"]["spent"]] == spent
    assert (found["path"]["age_ms"], found["path"]["is_finished"]) == (50_000, False)
    facts = topology_document(tmp_path, play.topology, at_ms=ms(60))
    assert (
        topology_as_text(facts)
        .splitlines()[1]
        .startswith("critical path of a window that was not finished by ever_board: events (0 ms) → newest (0 ms)")
    )
    page = topology_page(found, facts, play.topology)
    assert "It is 50 s old, and ever_board has not finished it: 6 s before the path" in page
    assert "44 s on it" in page
    assert ">44 s behind<" in page


def test_each_partition_has_its_lag_and_its_backlog(tmp_path: Path) -> None:
    play = Play(NEWEST, tmp_path, partitions=2)
    for k in range(12):
        parts = (0, 1) if k < 6 else (0,)
        rows = [play.row("events", ms(10 * k), partition=part, key="a", id="a", v=k) for part in parts]
        play.batch(rows, at_ms=ms(10 * k + 1))
    first, second = model(play, 112)["partitions"]
    # Partition 1 had its last record at second 50. A watermark is 1 ms and the bound, 1 s, before it.
    assert (first["partition"], first["lag_ms"], first["silent_ms"], first["causes"]) == (0, 3_001, 1_000, [])
    assert (second["partition"], second["lag_ms"], second["silent_ms"]) == (1, 63_001, 61_000)
    assert second["causes"] == ["partition_silent"]
    # 110 s − 50 s
    assert [(row["holds_back"], row["holds_back_ms"]) for row in (first, second)] == [(False, None), (True, 60_000)]


JOINED = topology_of(
    drivers=source("id string, name string", topic="drivers"),
    rides=source("id string, v int", topic="rides"),
    driver=table("drivers", columns=["name"]),
    with_driver=join("rides", "driver", on={"id": "id"}),
    board=sink("with_driver", table="board"),
)
BOTH = topology_of(
    events=source("id string, v int", idle_after="30 s"),
    others=source("id string, v int", topic="others", idle_after="30 s"),
    both={"kind": "union", "inputs": ["events", "others"]},
    newest=table("both", columns=["v"]),
    board=sink("newest", table="board"),
)


@pytest.mark.parametrize(
    ("toml", "partitions", "records", "holding"),
    [
        # Each record is of a source, a partition and a second. What holds time back does so by the distance of the two
        # slowest places that may.
        (NEWEST, 1, [("events", 0, 50)], {}),
        (NEWEST, 2, [("events", 0, 50), ("events", 1, 47)], {("events", 1): 3_000}),
        (NEWEST, 2, [("events", 0, 50), ("events", 1, 50)], {}),
        (NEWEST, 2, [("events", 0, 50)], {("events", 1): None}),
        (NEWEST, 3, [("events", 0, 50), ("events", 1, 40), ("events", 2, 35)], {("events", 2): 5_000}),
        # The side of a join that is looked up never holds time back, however old it is.
        (JOINED, 1, [("drivers", 0, 1), ("rides", 0, 50)], {}),
        (JOINED, 2, [("drivers", 0, 1), ("rides", 0, 50), ("rides", 1, 48)], {("rides", 1): 2_000}),
        # Of two sources the slower one holds back, and only its slowest partition.
        (BOTH, 1, [("events", 0, 50), ("others", 0, 44)], {("others", 0): 6_000}),
        (BOTH, 2, [("events", 0, 50), ("events", 1, 49), ("others", 0, 44), ("others", 1, 45)], {("others", 0): 1_000}),
    ],
)
def test_only_a_partition_that_others_wait_for_holds_the_watermark_back(
    tmp_path: Path, toml: str, partitions: int, records: list[tuple[str, int, int]], holding: dict[Any, Any]
) -> None:
    play = Play(toml, tmp_path, partitions=partitions)
    rows = [play.row(name, ms(at_s), partition=part, key="a", id="a") for name, part, at_s in records]
    play.batch(rows, at_ms=ms(51))
    found = {
        (row["source"], row["partition"]): row["holds_back_ms"]
        for row in model(play, 52)["partitions"]
        if row["holds_back"]
    }
    assert found == holding


def test_an_idle_partition_holds_nothing_back(tmp_path: Path) -> None:
    play = Play(BOTH, tmp_path)
    rows = [play.row(name, ms(5), key="a", id="a", v=1) for name in ("events", "others")]
    play.batch(rows, at_ms=ms(6))
    play.batch([play.row("events", ms(30), key="a", id="a", v=2)], at_ms=ms(31))
    assert [row["holds_back_ms"] for row in model(play, 32)["partitions"]] == [None, 25_000]
    play.batch([play.row("events", ms(60), key="a", id="a", v=3)], at_ms=ms(61))
    assert [(row["activity"], row["holds_back"]) for row in model(play, 62)["partitions"]] == [
        ("active", False), ("idle", False),
    ]  # fmt: skip
    # Its next record is behind a watermark that does not go back, and has to catch up before it holds that back.
    rows = [play.row("events", ms(70), key="a", id="a", v=4), play.row("others", ms(10), key="a", id="a", v=4)]
    play.batch(rows, at_ms=ms(71))
    assert [(row["activity"], row["holds_back"]) for row in model(play, 72)["partitions"]] == [
        ("active", False), ("active", False),
    ]  # fmt: skip
    play.batch([play.row("others", ms(71), key="a", id="a", v=5)], at_ms=ms(72))
    play.batch([play.row("events", ms(80), key="a", id="a", v=5)], at_ms=ms(81))
    assert [row["holds_back_ms"] for row in model(play, 82)["partitions"]] == [None, 9_000]


def test_beside_idle_partitions_the_slowest_of_the_others_holds_the_watermark_back(tmp_path: Path) -> None:
    play = Play(BOTH, tmp_path, partitions=2)
    rows = [play.row(name, ms(5), partition=part, key="a", id="a") for name in ("events", "others") for part in (0, 1)]
    play.batch(rows, at_ms=ms(6))
    rows = [play.row("events", ms(at_s), partition=part, key="a", id="a") for part, at_s in enumerate((60, 50))]
    play.batch(rows, at_ms=ms(61))
    assert [(row["activity"], row["holds_back_ms"]) for row in model(play, 62)["partitions"]] == [
        ("active", None), ("active", 10_000), ("idle", None), ("idle", None),
    ]  # fmt: skip


def test_a_partition_that_was_quarantined_days_ago_is_named(tmp_path: Path) -> None:
    """Pages and `why` read two days first."""
    play, hour = Play(NEWEST, tmp_path, partitions=2), 3_600
    for at_s in (10, 60 * hour, 96 * hour):
        bad_rows = [bad("malformed_json", part=1)(play)] if at_s == 10 else []
        play.batch([play.row("events", ms(at_s), key="a", id="a", v=at_s), *bad_rows], at_ms=ms(at_s + 1))
    first, second = model(play, 96 * hour + 2)["partitions"]
    assert (first["partition"], first["silent_ms"], first["causes"]) == (0, 1_000, [])
    assert (second["partition"], second["silent_ms"]) == (1, (96 * hour + 2 - 11) * 1_000)
    assert second["causes"] == ["poison_at_head"]


KINDS = topology_of(
    {"window": "5 s"},
    events=source("id string, v int"),
    mapped=map_of(select={"id": "id", "v": "v"}),
    sums=aggregate("mapped", key=["id"], aggregates={"n": "count(*)"}),
    board=sink("sums", table="board"),
)
NOTHING_YET = "No latency was measured in this time."
NO_STATE = "The end-to-end latency of mapped is not measured: it keeps no state, and its work counts at its readers."
FROM_LEVEL = "The end-to-end latency of {} is measured from level {} on, and play has level {}."


@pytest.mark.parametrize(
    ("level", "operator", "said"),
    [
        ("info", "events", None),
        ("info", "board", None),
        ("info", "sums", FROM_LEVEL.format("sums", "trace", "info")),
        ("debug", "sums", FROM_LEVEL.format("sums", "trace", "debug")),
        ("trace", "sums", None),
        ("trace", "mapped", NO_STATE),
        ("off", "board", FROM_LEVEL.format("board", "info", "off")),
    ],
)
def test_an_operator_without_a_chart_of_latency_says_why_it_has_one_in_its_tile(
    tmp_path: Path, level: str, operator: str, said: str | None
) -> None:
    play = Play(KINDS.replace('name = "play"', f'name = "play"\nlevel = "{level}"'), tmp_path)

    def page(at_s: float) -> str:
        tables, at_ms = Warehouse(tmp_path, topology="play"), ms(at_s)
        found = page_model(tables, Layout(tmp_path), play.topology, NOTHING, at_ms=at_ms, operator=operator)
        facts = topology_facts(tables, scene(play.topology, Layout(play.home), at_ms, stored=tables.stored))
        past = history(tables, "play", [operator], ChartSpan.HOUR, at_ms=at_ms)
        return operator_page(found, facts, play.topology, operator, past, ())

    assert (said or NOTHING_YET) in page(0)
    for at_s in (10, 20, 30):
        play.batch([play.row("events", ms(at_s - 1), key="a", id="a", v=at_s)], at_ms=ms(at_s))
    shown = page(31)
    tile = re.search(r"<dt>latency of its last ten windows</dt><dd>(.*?)</dd>", shown)
    # A source has no upstream from which its latency would count.
    assert (tile and tile[1]) == (None if operator == "events" else "–" if level == "off" else "0 ms")
    if said is None:
        assert "<h3>End-to-end latency</h3>" in shown
        assert 'class="none"' not in shown.partition("<h2>Latency")[2]
    else:
        assert said in shown


def test_silent_groups_of_the_newest_check_are_listed(tmp_path: Path) -> None:
    play = played(tmp_path)
    check = {"topology": "play", "subject": "newest", "measure": "staleness", "verdict": "error", "message": ""}
    silent = [{"name": "b", "newest_ms": ms(2)}, {"name": "a", "newest_ms": ms(5)}]
    rows = [
        {**check, "sla": "fresh", "checked_at": ms(60), "run_id": "r2"},
        {**check, "sla": "each_key", "checked_at": ms(60), "run_id": "r2", "stale_groups": silent},
        {**check, "sla": "each_key", "checked_at": ms(50), "run_id": "r1", "stale_groups": [*silent, *silent]},
    ]
    write_deltalake(Layout(tmp_path).report_table("play", SLA_RESULTS.name), rows_of(SLA_RESULTS, rows))
    found = model(play, 62)["silent_groups"]
    of_sla = {"sla": "each_key", "subject": "newest"}
    assert found == [
        {**of_sla, "group": "b", "newest_at": utc(ms(2)), "silent_ms": 58_000},
        {**of_sla, "group": "a", "newest_at": utc(ms(5)), "silent_ms": 55_000},
    ]


def test_incidents_of_one_cause_are_one_open_alert(tmp_path: Path) -> None:
    play = played(tmp_path)
    opened = {
        "topology": "play", "change": "opened", "severity": "warning", "opened_at": ms(10), "broken_since": ms(9),
        "changed_at": ms(10), "message": "late",
    }  # fmt: skip
    dead = {**opened, "alert": "dead", "cause": "driver_dead", "severity": "critical", "slas": ["a", "b"]}
    worse = {"change": "escalated", "changed_at": ms(11), "message": "very late", "slas": None}
    rows = [
        {**opened, "alert": "slow", "slas": ["c"], "incidents": ["c-1"]},
        {**opened, "alert": "over", "slas": ["d"]},
        {**opened, "alert": "over", "change": "resolved", "changed_at": ms(12)},
        {**opened, "alert": "to ann", "audience": "ann", "slas": ["a"]},
        dead,
        {**dead, **worse},
    ]
    write_deltalake(Layout(tmp_path).report_table("play", ALERTS.name), rows_of(ALERTS, rows))
    found = [(row["alert"], row["slas"], row["measurement"]) for row in model(play, 13)["alerts"]]
    assert found == [("dead", ["a", "b"], "very late"), ("slow", ["c"], "late")]
    acknowledged = {
        "topology": "play",
        "incident": "c-1",
        "change": "acknowledged",
        "changed_at": ms(12.5),
        "decided_by": "ann",
    }
    write_deltalake(Layout(tmp_path).report_table("play", INCIDENTS.name), rows_of(INCIDENTS, [acknowledged]))
    assert [row["acknowledged_by"] for row in model(play, 13)["alerts"]] == [None, "ann"]
    # The newest check finds that two of the four SLAs of open alerts hold again.
    checked(tmp_path, 13, a="pass", b="error", c="pass", d="pass", e="pass")
    assert model(play, 13)["slas"]["recovering"] == 2
    # Before it was resolved it was open.
    assert "over" in [row["alert"] for row in model(play, 11.5)["alerts"]]


def test_a_topology_is_told_by_one_reading_of_each_log_and_entry_and_its_text_without_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Play(TOML_WITH_PATHS, tmp_path, facts_every_ms=60_000)
    for at_s in (10, 20, 30, 100, 110):
        play.batch([play.row("events", ms(at_s - 1), key="a", id="a", v=at_s)], at_ms=ms(at_s))
    tell(beats(play), 112)
    checked(tmp_path, 112, fresh="pass")
    opened, read, asked = Counter[Path](), Counter[str](), list[str]()
    read_log, readable, ask = stored_tables.read_log, unflushed.readable, Warehouse.ask

    def counted_log(path: Path, before: ReadLog | None) -> ReadLog:
        opened[path] += 1
        return read_log(path, before)

    def counted_entry(journal: Journal, number: int, /, *, only: tuple[str, ...]) -> Entry | None:
        read[journal.path(number).name] += 1
        return readable(journal, number, only=only)

    def counted_ask(tables: Warehouse, text: str, parameters: Sequence[Any] = ()) -> QueryResult:
        asked.append(text)
        return ask(tables, text, parameters)

    monkeypatch.setattr(stored_tables, "read_log", counted_log)
    monkeypatch.setattr(unflushed, "readable", counted_entry)
    monkeypatch.setattr(Warehouse, "ask", counted_ask)
    monkeypatch.setattr(datasets, "DeltaTable", None)  # delta-rs reads no log again

    tables, layout = Warehouse(tmp_path, topology="play"), Layout(tmp_path)
    state = TopologyState(tables.stored, layout, play.topology, at_ms=ms(113))
    summary = state.summary()
    assert asked == []
    of_text = dict(opened)
    whole = document(tables, state, NOTHING)
    topology_facts(tables, state.scene)
    assert {name: whole[name] for name in summary if name != "slas"} == {
        name: summary[name] for name in summary if name != "slas"
    }
    assert read
    assert {*read.values()} == {*opened.values()} == {1}
    # The text needs no table of windows' latencies, of incidents or of paths.
    names = {path.name for path in of_text}
    assert names < {path.name for path in opened}
    assert names <= {
        "batches", "heartbeats", "operator_batches", "partition_batches", "dead_letters", "operator_windows",
        "schema_changes", "state_changes", "sla_results", "topology_changes",
    }  # fmt: skip
    assert len(asked) == len({*asked}) <= 20
    # A later reading of this process looks at the logs again, and reads no entry again.
    TopologyState(Warehouse(tmp_path).stored, layout, play.topology, at_ms=ms(113)).summary()
    assert {opened[path] for path in of_text} == {2}
    assert {*read.values()} == {1}
