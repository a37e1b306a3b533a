"""Words and numbers of a page; tests/browser shows that browsers see it."""

import re
from dataclasses import fields
from html import escape
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.hostile_strings import HOSTILE
from tidemark.facts.interval_facts import PageFacts
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.operator import Level
from tidemark.model.kinds.source import Source
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.topology import SubTopology, Topology
from tidemark.reports.pages.interval_page import name_of, page
from tidemark.reports.pages.templates import length
from tidemark.reports.pages.topology_page import problem_page, start_page, topology_page
from tidemark.safe_text import inert

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("interval", "name"),
    [
        (Interval(0, HOUR_MS), "1970-01-01T00"),
        (Interval(23 * HOUR_MS, DAY_MS), "1970-01-01T23"),
        (Interval(DAY_MS, 2 * DAY_MS), "1970-01-02"),
        (Interval(1_000, HOUR_MS + 1_000), "1970-01-01T000001Z--1970-01-01T010001Z"),
        (Interval(0, 1_500), "1970-01-01T000000Z--1970-01-01T000001Z"),
    ],
)
def test_a_page_is_named_after_its_day_its_hour_or_its_instants(interval, name):
    assert name_of(interval) == name


@pytest.mark.parametrize(
    ("ms", "told"),
    [
        (0, "0 ms"),
        (431, "431 ms"),
        (-1_500, "-1.5 s"),
        (6_237.5, "6.24 s"),
        (118_000, "1 min 58 s"),
        (200_000, "3 min 20 s"),
        (59_960, "59.9 s"),
        (3_599_700, "59 min 59 s"),
        (86_399_000, "23 h 59 min"),
        (129_600_000, "1 d 12 h"),
        (None, "–"),
    ],
)
def test_a_length_has_the_unit_in_which_it_reads_best(ms, told):
    assert length(ms) == told


@example(26 * HOUR_MS, 26 * HOUR_MS - 60_000)
@given(st.integers(60_000, 3 * DAY_MS), st.integers(0, 3 * DAY_MS))
def test_what_is_below_a_limit_does_not_read_as_the_limit(limit_ms, ms):
    """Limits are written in two units, such as 26 h, which is 1 d 2 h."""
    shortest_ms = HOUR_MS if limit_ms >= DAY_MS else 60_000 if limit_ms >= HOUR_MS else 1_000
    written_ms = limit_ms // shortest_ms * shortest_ms
    below_ms = min(ms, written_ms - 1)
    assert length(below_ms) != length(written_ms)


def test_control_characters_are_written_out_and_all_else_stays():
    assert inert("by_carrier → Zürich\n") == "by_carrier → Zürich\n"
    assert inert("\x1b[2J\x07\x7f\x9b\u202e\U000e0001") == r"\u001b[2J\u0007\u007f\u009b\u202e\udb40\udc01"


def page_that_says(text, **changes):
    """Returns a topology's page whose tables all have *text*.

    *changes* are those of its model.
    """
    events = Source(name="events", topic="t", fields={}, timestamp_range_ms=(0, 1), bound_ms=0)
    topology = Topology(
        "play",
        Level.INFO,
        5_000,
        1_000,
        (SubTopology("events", (events, Map(name="slow", inputs=("events",), select={}))),),
    )
    counted = {"records_in_per_s": 1.0, "records_out_per_s": 1.0, "unread_records": None, "held_records": 0}
    operator = {"kind": "map", "upstreams": [text], "moving_average_ms": None, "watermark": None, **counted}
    told = {"operators": [{**operator, "operator": name} for name in ("events", "slow", text)]}
    step = dict.fromkeys(("latency_ms", "waited_ms", "queued_ms", "worked_ms"), 1) | {
        "share": None,
        "state": "measured",
        "task": None,
    }
    window = {
        "window_end": utc(0), "leaf": text, "is_finished": True, "age_ms": 2,
        "before_source_ms": 1, "latency_ms": 1, "over_sla": False,
        "verdicts": None,
        "path": ["events", "slow"], "steps": [{**step, "operator": text}],
        "spent": [{"part": text, "ms": 2, "usual_ms": None}],
        "finished_ago_ms": 5_000, "is_current": True, "is_live": False,
    }  # fmt: skip
    cause = {
        "cause": "backlog", "operator": text, "input": f"{text} ", "partition": None, "since": None, "seen": text,
        "remedy": "wait",
    }  # fmt: skip
    stream = {
        "sub_topology": text, "state": "running", "reason": text, "last_heartbeat_at": None, "last_batch_at": None,
        "since": utc(20_000), "records_in": 3, "records_behind": None, "eta_at": None,
    }  # fmt: skip
    slas = {"checked_at": None, "is_overdue": True, "n": 1, "broken": 1, "warned": 0, "unknown": 0, "recovering": 0}
    slas["rows"] = [{"sla": "fresh", "verdict": "error", "message": "it is 9 s old"}]
    standing = {"verdict": "late", "slas": [text], "stuck_ms": None}
    nothing: dict[str, list[Any]] = {
        "alerts": [],
        "budgets": [],
        "partitions": [],
        "silent_groups": [],
    }
    change = {"at": utc(0), "sub_topology": text, "operator": text, "batch_id": 2, "told": text}
    decision = {"decided_at": utc(0), **dict.fromkeys(("decision", "subject", "effect", "decided_by", "note"), text)}
    model = {
        "topology": text, "at": utc(0), "verdict": "late", "state": "running", "newest_result_at": None,
        "newest_result_age_ms": None, "cause": cause, "causes": [cause], "streams": [stream], "slas": slas,
        "operators": {"events": standing, "slow": standing | {"slas": []}}, "path": window, "report": None,
        "records_in": 3, "quarantined": 0, "late": 0, "quarantined_last_hour": 0, "late_last_hour": 0,
        "changes": [change], "decisions": [decision], **nothing,
    }  # fmt: skip
    return topology_page({**model, **changes}, told, topology)


def visible(page):
    """Returns the text between the tags of *page*."""
    return re.sub("<[^>]*>", "|", page)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_a_table_says_is_text_on_the_page_of_a_topology(hostile):
    page = page_that_says(hostile)
    written = escape(inert(hostile)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")  # as Jinja2 writes them
    harmless = page_that_says("harmless")
    # Title, links and heading 3; cause twice, each 2; boxes and path 3; parts and steps 2; findings, streams, table 8;
    # a change 3, a decision 5.
    assert visible(page).count(written) == visible(harmless).count("harmless") == 29
    assert re.findall("<[a-z]+", page) == re.findall("<[a-z]+", harmless)
    assert page.replace("\n", "").isprintable()
    assert page.count('class="on-path amber"') == 2
    assert page.count('class="on-path"') == 1  # the edge between the two boxes


def test_boxes_have_verdicts_and_a_path_without_results_dashes():
    alive = page_that_says("x", verdict="on_time", operators={})
    assert '<svg class="topology"' in alive
    standing = {"verdict": "broken", "slas": ["fresh"], "stuck_ms": None}
    dead = page_that_says(
        "x", verdict="broken", operators={"events": standing | {"verdict": "quiet"}, "slow": standing}
    )
    assert '<svg class="topology old"' in dead
    assert re.findall('<text class="verdict".*?>(.*?)</text>', dead) == ["no new records", "SLA broken"]
    assert re.findall('<g class="on-path (.*?)"', dead) == ["gray", "red"]
    assert "moving average –, SLA broken: fresh" in dead
    assert "1 of 1 SLA broken: fresh: it is 9 s old." in dead
    down = {"verdict": "not_running", "slas": [], "stuck_ms": None}
    stopped = page_that_says("x", operators={"events": down | {"state": "drained"}, "slow": down | {"state": "failed"}})
    assert re.findall('<text class="verdict".*?>(.*?)</text>', stopped) == ["drained", "failed"]
    assert re.findall('<g class="on-path (.*?)"', stopped) == ["gray", "red"]


ALERT = {
    "alert": "a1", "severity": "critical", "cause": "next_record", "sub_topology": "s", "operator": "events",
    "partition": 3, "incidents": ["fresh-1", "quick-1"], "slas": ["fresh", "quick"], "tables": ["board"],
    "topics": ["sums"], "owners": [],
    "broken_since": utc(0), "since": utc(0), "opened_at": utc(60_000), "measurement": "too slow",
    "measured_at": utc(90_000), "culprit": None, "runbook": None, "acknowledged_by": None,
    "states": {"fresh": "error", "quick": "passes since 21:44, resolves at 21:54 if it holds"},
}  # fmt: skip


def text_of(page, element):
    """Returns the text of the element with this id."""
    (inner,) = re.findall(rf'<(?:ul|table)[^>]* ?id="{element}">(.*?)</(?:ul|table)>', page, re.DOTALL)
    return " ".join(re.sub("<.*?>", " ", inner).split())


def test_incidents_of_one_cause_are_one_line_with_its_place():
    page = page_that_says("play", alerts=[ALERT])
    assert text_of(page, "alerts") == (
        "critical Next record at events partition 3 since 1970-01-01 00:00:00 . 2 SLAs : fresh is broken; "
        "quick passes since 21:44, resolves at 21:54 if it holds. Acknowledge or silence . "
        "Found at 1970-01-01 00:01:30 : too slow. Behind it: board, sums."
    )
    assert 'href="play/operators/events"' in page
    assert 'href="play/decisions?subject=fresh-1"' in page
    assert "Acknowledged by ann." in page_that_says("play", alerts=[ALERT | {"acknowledged_by": "ann"}])


@pytest.mark.parametrize(("checked_ms", "told"), [(19_000, ", before the streams started"), (20_000, "")])
def test_a_check_for_an_instant_before_the_streams_started_says_so(checked_ms, told):
    slas = {"checked_at": utc(checked_ms), "is_overdue": False, "n": 7, "broken": 0, "warned": 0, "unknown": 6}
    page = page_that_says("play", at=utc(61_000), slas={**slas, "recovering": 0, "rows": []})
    assert f"1 of 7 holds, 6 not judged checked {(61_000 - checked_ms) // 1_000} s ago{told} " in read(page)


def line_of(name, verdict, *, streams=("running",), **more):
    """Returns the page model of a topology on the start page; its streams are s0, s1 and so on."""
    of_streams = [{"sub_topology": f"s{number}", "state": state} for number, state in enumerate(streams)]
    slas = {"n": 7, "broken": 0, "warned": 0, "unknown": 0, "is_overdue": False, "recovering": 0, "rows": []}
    known = {
        "at": utc(0),
        "state": streams[0],
        "newest_result_age_ms": 118_000,
        "report": None,
        "slas": slas,
        "cause": None,
    }
    return {"topology": name, "verdict": verdict, "streams": of_streams, "alerts": [], **known, **more}


def read(page):
    """Returns the text of *page* from its heading on."""
    return " ".join(re.sub("<.*?>", " ", page[page.index("<main>") :]).split())


def test_the_start_page_leads_with_what_is_wrong():
    cause = {
        "cause": "cannot_write", "operator": "board", "input": None, "partition": None, "seen": "the disk is full",
        "remedy": "free space",
    }  # fmt: skip
    slas = {"n": 7, "broken": 2, "warned": 0, "unknown": 0, "is_overdue": False, "recovering": 0}
    slas["checked_at"] = utc(90_000)
    slas["rows"] = [{"sla": name, "verdict": "error", "message": f"{name} is late"} for name in ("fresh", "quick")]
    lines = [
        line_of("a_fine", "on_time", streams=["running"] * 5, at=utc(95_000)),
        line_of("b_idle", "quiet"),
        line_of("b_stopped", "not_running", streams=["drained", "running"]),
        {"topology": "c_new"},
        line_of("d_recovers", "on_time", alerts=[ALERT]),
        line_of("e_late", "late"),
        line_of(
            "f_broken", "broken", streams=["running", "failed", "catching_up", "running"], cause=cause, slas=slas,
            report="2026-01-31T12", alerts=[ALERT | {"slas": ["fresh"], "states": {"fresh": "error"}}],
        ),
        {
            "topology": "g_typo", "at": utc(0), "verdict": "unreadable", "state": "running", "error": "g_typo.toml: x",
            "streams": [],
        },
    ]  # fmt: skip
    page = start_page(lines, folder="topologies")
    # The worst verdict first; then those of which nothing is known to be wrong, and the one that is being read.
    order = ["g_typo", "f_broken", "e_late", "d_recovers", "b_stopped", "b_idle", "a_fine", "c_new"]
    assert re.findall('<(?:section|tr)[^>]* id="(.+?)"', page) == order
    text = read(page)
    # Somebody wanted b_stopped to stand still.
    assert "4 of 8 topologies need attention. 1 of 8 is being read." in text
    of_broken = text[text.index("f_broken") : text.index("e_late")].strip()
    assert of_broken == (
        "f_broken SLA broken SLA fresh: fresh is late; also broken: quick. Checked at 1970-01-01 00:01:30. "
        "Cannot write at board : the disk is full. Free space. "
        "as of 1970-01-01 00:00:00 streams failed s1 catching up s2 running s0, s3 newest result 1 min 58 s ago "
        "SLAs 2 of 7 broken report 2026-01-31 12:00 open alerts "
        "critical Next record at events partition 3 since 1970-01-01 00:00:00 . 1 SLA : fresh is broken. "
        "Acknowledge or silence . Found at 1970-01-01 00:01:30 : too slow. Behind it: board, sums."
    )
    assert text[text.index("g_typo") : text.index("f_broken")].strip() == (
        "g_typo not readable g_typo.toml: x as of 1970-01-01 00:00:00 streams none "
        "newest result not known SLAs not known report none yet"
    )
    # A line that was read at another instant says so.
    assert "a_fine 1970-01-01 00:01:35 on time running 5 streams 1 min 58 s ago 7 of 7 hold none yet" in text
    assert 'href="pages/f_broken/slas#fresh-1"' in page
    assert 'href="pages/f_broken/decisions?subject=fresh-1"' in page


def test_an_alert_whose_crossing_is_not_known_was_found_at_its_check():
    lines = [line_of("a", "broken", alerts=[ALERT | {"broken_since": None}])]
    assert "at events partition 3 found broken at 1970-01-01 00:00:00" in read(start_page(lines, folder="topologies"))


def test_the_card_of_a_report_has_its_instants():
    page = page_that_says("play", report="2026-11-28T191547Z--2026-11-28T192000Z")
    assert 'href="play/reports/2026-11-28T191547Z--2026-11-28T192000Z"' in page
    assert "newest report 2026-11-28 19:15:47 to 19:20:00" in read(page)


def test_a_start_page_without_a_fault_says_so():
    lines = [line_of("a", "on_time"), line_of("b", "not_checked")]
    page = start_page(lines, folder="topologies")
    # Each line may be of an instant of its own.
    assert "No topology needed attention at 1970-01-01 00:00:00 UTC." in read(page)
    later = start_page([lines[0], lines[1] | {"at": utc(1_000)}], folder="topologies")
    assert "No topology needed attention at the instants below." in read(later)
    assert "<title>Tidemark</title>" in page
    # A topology whose state is still being read may turn out to need attention.
    some = read(start_page([*lines, {"topology": "c"}], folder="topologies"))
    assert "None of those that were read needed attention at 1970-01-01 00:00:00 UTC. 1 of 3 is being read." in some


@pytest.mark.parametrize(
    ("wrong", "well", "unread", "said"),
    [
        (1, 0, 0, "1 of 1 topology needs attention."),
        (1, 1, 1, "1 of 3 topologies needs attention. 1 of 3 is being read."),
        (2, 0, 2, "2 of 4 topologies need attention. 2 of 4 are being read."),
        (0, 0, 2, "2 of 2 are being read."),
    ],
)
def test_the_topologies_of_the_start_page_are_counted_in_words_that_agree(wrong, well, unread, said):
    lines = [line_of(f"w{number}", "late") for number in range(wrong)]
    lines += [line_of(f"a{number}", "on_time") for number in range(well)]
    lines += [{"topology": f"u{number}"} for number in range(unread)]
    start = start_page(lines, folder="topologies")
    (summary,) = re.findall('<p class="first" id="summary">(.*?)</p>', start)
    assert re.sub("<.*?>", "", summary).strip() == said


@pytest.mark.parametrize(("streams", "said"), [({}, "not known"), ({"streams": []}, "none")])
def test_a_topology_whose_tables_cannot_be_read_is_not_said_to_have_no_streams(streams, said):
    line = {"topology": "a", "at": utc(0), "verdict": "unreadable", "state": "unknown", "error": "disk gone", **streams}
    text = read(start_page([line], folder="topologies"))
    assert f"a not readable disk gone as of 1970-01-01 00:00:00 streams {said} newest result" in text


def test_broken_slas_whose_checks_stopped_say_so():
    slas = {"n": 1, "broken": 1, "warned": 0, "unknown": 0, "recovering": 0, "is_overdue": True, "checked_at": utc(0)}
    slas["rows"] = [{"sla": "fresh", "verdict": "error", "message": "fresh is late"}]
    said = read(start_page([line_of("a", "broken", slas=slas)], folder="topologies"))
    told = "SLA fresh: fresh is late. Checked at 1970-01-01 00:00:00; no check since, although more were due."
    assert told in said
    assert "SLAs 1 of 1 broken when last checked" in said


@pytest.mark.parametrize(
    ("windows", "over", "promised", "said"),
    [
        (0, 0, True, "No streaming window that ends in this time was finished by every operator."),
        (1, 1, True, "1 of 1 window broke the limit of an SLA."),
        (2, 1, True, "1 of 2 windows broke the limit of an SLA."),
        (1, 0, True, "The only window did not break the limit of an SLA about latency or work."),
        (2, 0, True, "None of 2 windows broke the limit of an SLA about latency or work."),
        (1, 0, False, "1 window was closed. No SLA limits"),
        (2, 0, False, "2 windows were closed. No SLA limits"),
    ],
)
def test_a_report_counts_its_windows_in_words_that_agree(windows, over, promised, said):
    lengths = dict.fromkeys(("median_ms", "p90_ms", "max_ms", "before_source_ms", "skew_error_ms"))
    nothing: dict[str, Any] = {field.name: [] for field in fields(PageFacts)}
    nothing |= {"operators": {}, "account": {}, "place_ms": 60_000, "interval": Interval(0, HOUR_MS)}
    summary = {"windows": windows, "over_sla": over, "promised": promised, **lengths}
    source = Source(name="events", topic="t", fields={}, timestamp_range_ms=(0, 1), bound_ms=0)
    topology = Topology("play", Level.INFO, 5_000, 1_000, (SubTopology("events", (source,)),))
    facts = PageFacts(**nothing | {"topology": topology, "summary": summary})
    assert said in read(page(facts))


def test_a_remedy_and_an_instant_are_told_once():
    by_ann = {
        "cause": "drained", "input": None, "partition": None, "since": "1970-01-01T00:00:05.000Z",
        "seen": "ann drained it at 1970-01-01T00:00:05.000Z", "remedy": "start it",
    }  # fmt: skip
    late = by_ann | {"cause": "backlog", "operator": "a", "seen": "9 wait", "remedy": "wait"}
    causes = [by_ann | {"operator": "a"}, by_ann | {"operator": "b"}, late]
    assert text_of(page_that_says("play", causes=causes), "causes") == (
        "Drained at a : ann drained it at 1970-01-01 00:00:05. "
        "Drained at b : ann drained it at 1970-01-01 00:00:05. Start it. "
        "Backlog at a : 9 wait (since 1970-01-01 00:00:05 ). Wait."
    )


def test_a_name_that_a_problem_begins_with_stays_as_it_is():
    told = [read(problem_page(f"{text} is none", status=404, start="./")) for text in ("flights: there", "there")]
    assert ["flights: there is none." in told[0], "There is none." in told[1]] == [True, True]


def test_partitions_have_lag_backlog_and_silence():
    row = {
        "source": "events", "partition": 3, "topic_partition": None, "lag_ms": 90_000, "unread": 1_200,
        "silent_ms": 150_000, "activity": "active", "watermark": utc(0), "causes": ["partition_silent"],
        "holds_back": True, "holds_back_ms": 61_000,
    }  # fmt: skip
    said = text_of(page_that_says("play", partitions=[row]), "partitions").partition("remark ")[2]
    assert said == (
        "events 3 1 min 30 s 1,200 2 min 30 s ago active 1970-01-01 00:00:00 partition silent ; "
        "holds the watermark back by 1 min 1 s"
    )
    # Some partition is always the slowest one; only a cause is amber.
    usual = page_that_says("play", partitions=[row | {"causes": [], "holds_back_ms": 200}])
    assert text_of(usual, "partitions").endswith("00:00:00 holds the watermark back by 200 ms")
    assert (
        "amber" in page_that_says("play", partitions=[row]).partition('id="partitions"')[2].partition("</table>")[0]
    ) is True
    assert "amber" not in usual.partition('id="partitions"')[2].partition("</table>")[0]
    without = page_that_says("play", partitions=[row | {"causes": [], "holds_back_ms": None}])
    assert text_of(without, "partitions").endswith("00:00:00 holds the watermark back")


@pytest.mark.parametrize(
    ("n", "counts", "said"),
    [
        (0, {}, "not checked yet"),
        (1, {}, "1 of 1 holds"),
        (2, {}, "2 of 2 hold"),
        (1, {"is_overdue": True}, "1 of 1 held when last checked"),
        # Of a stream that never started nothing is measured, and after its first results its alert stays open.
        (1, {"unknown": 1}, "1 of 1 not judged"),
        (1, {"recovering": 1}, "1 of 1 holds, 1 recovering, with an alert that is still open"),
        (3, {"unknown": 1}, "2 of 3 hold, 1 not judged"),
        (3, {"broken": 1, "warned": 1, "unknown": 1}, "1 of 3 broken, 1 with a warning, 1 not judged"),
        # Others may be broken by now.
        (3, {"broken": 2, "is_overdue": True}, "2 of 3 broken when last checked"),
        (2, {"warned": 1, "is_overdue": True}, "1 of 2 with a warning when last checked"),
        (2, {"unknown": 2, "is_overdue": True}, "2 of 2 not judged when last checked"),
        (4, {"warned": 1, "recovering": 2}, "1 of 4 with a warning, 2 recovering, with an alert that is still open"),
    ],
)
def test_slas_are_counted_in_words_that_fit_the_alerts_beside_them(n, counts, said):
    zero = {"is_overdue": False, "broken": 0, "warned": 0, "unknown": 0, "recovering": 0, "rows": []}
    page = page_that_says("play", verdict="late", slas={"checked_at": None, "n": n, **zero, **counts})
    (tile,) = re.findall(r"<dt>SLAs</dt><dd[^>]*><a[^>]*>(.*?)</a>", page)
    assert tile == said


def test_a_stuck_operator_is_on_the_path_and_is_named():
    standing = {"verdict": "on_time", "slas": [], "stuck_ms": None}
    page = page_that_says("play", operators={"events": standing, "slow": standing | {"stuck_ms": 45_000}})
    assert re.findall('<text class="verdict".*?>(.*?)</text>', page) == ["on time", "stuck for 45 s"]
    assert re.findall('<g class="on-path (.*?)"', page) == ["green", "red"]
    assert "slow has not finished it<" in page


def test_a_stream_that_catches_up_has_its_estimate():
    stream = {
        "sub_topology": "s", "state": "catching_up", "reason": None, "last_heartbeat_at": None, "last_batch_at": None,
        "records_in": 3, "records_behind": 12_000, "arrival_per_s": 100.4, "working_per_s": 400.0,
        "eta_at": utc(40_000), "since": utc(0),
    }  # fmt: skip
    said = "12,000 records; reads 400/s while 100/s come; caught up at 1970-01-01 00:00:40"
    assert said in text_of(page_that_says("play", streams=[stream]), "streams")
