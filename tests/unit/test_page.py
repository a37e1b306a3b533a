"""What a page says in words and numbers; tests/browser shows that a browser sees it."""

import re
from html import escape

import pytest
from hostile import HOSTILE

from tidemark.inert import inert
from tidemark.report.page import name_of
from tidemark.report.templates import length
from tidemark.report.topology_page import topology_page
from tidemark.spec.intervals import Interval, utc
from tidemark.spec.operators import Kind, Level, Map, Source
from tidemark.spec.topology import SubTopology, Topology

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
    [(0, "0 ms"), (431, "431 ms"), (-1_500, "-1.50 s"), (6_237.5, "6.24 s"), (200_000, "3.33 min"), (None, "–")],
)
def test_a_length_has_the_unit_in_which_it_reads_best(ms, told):
    assert length(ms) == told


def test_text_that_a_terminal_would_obey_is_written_out_and_all_else_stays():
    assert inert("by_carrier → Zürich\n") == "by_carrier → Zürich\n"
    assert inert("\x1b[2J\x07\x7f\x9b\u202e\U000e0001") == r"\u001b[2J\u0007\u007f\u009b\u202e\udb40\udc01"


def page_that_says(text):
    """The page of a topology of whose tables all say *text*."""
    events = Source(name="events", kind=Kind.SOURCE, topic="t", fields={}, timestamp_range_ms=(0, 1), bound_ms=0)
    topology = Topology(
        "play",
        Level.INFO,
        5_000,
        1_000,
        (SubTopology("0", (events, Map(name="slow", kind=Kind.MAP, inputs=("events",), select={}))),),
    )
    counted = {"records_in_per_s": 1.0, "records_out_per_s": 1.0, "unread_records": None, "held_records": 0}
    operator = {"kind": "map", "upstreams": [text], "moving_average_ms": None, **counted}
    driver = {
        "sub_topology": text,
        "state": text,
        "last_heartbeat_at": None,
        "last_batch_id": None,
        "watermark": None,
    }
    told = {
        "at": text, "level": "info", "window_ms": 5_000, "sub_topologies": [driver],
        "operators": [{**operator, "operator": name} for name in ("events", "slow", text)],
    }  # fmt: skip
    step = dict.fromkeys(("latency_ms", "waited_ms", "queued_ms", "worked_ms"), 1) | {"share": None}
    path = ["events", "slow"]
    window = {
        "window_end": utc(0),
        "leaf": text,
        "age_ms": 2,
        "before_source_ms": 1,
        "latency_ms": 1,
        "path": path,
        "steps": [{**step, "operator": text}],
    }
    return topology_page(told, window, topology, ["play", text])


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_what_a_table_says_is_text_on_the_page_of_a_topology(hostile):
    page = page_that_says(hostile)
    written = escape(inert(hostile)).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")  # as Jinja2 writes them
    assert page.count(written) == 5 + 2 + 2 + 4  # head and links, path, streams, operators
    assert re.findall("<[a-z]+", page) == re.findall("<[a-z]+", page_that_says("harmless"))
    assert page.replace("\n", "").isprintable()
    assert page.count('class="on-path"') == 3  # two boxes and the edge between them
