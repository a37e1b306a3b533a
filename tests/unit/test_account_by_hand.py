"""Accounts of time that were worked out by hand: the example of docs/why.md, and rules that need few numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from support.typed_commands import commands, means, options_of
from tidemark.account import facts as frames
from tidemark.account.arrivals import Offset, stamped_offset, usual_delays, with_created_arrivals
from tidemark.account.debts import debts_of
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners.registry import OWNERS, register
from tidemark.account.records import record_parts
from tidemark.account.steps import by_owner
from tidemark.account.text import deed_of, remedy_of
from tidemark.account.timeline import TIMELINE
from tidemark.account.unfinished import OPEN, RUNNING, open_parts, until_now
from tidemark.account.windows import window_parts
from tidemark.model import topology

FLIGHTS = topology.load(Path(__file__).parents[2] / "jobs" / "topologies" / "flights.toml")
SEGMENTS = [
    ("trigger", "", 11_000, 13_000),
    ("broker", "orders", 13_000, 13_040),
    ("trigger", "", 13_040, 14_000),
    ("broker", "orders", 14_000, 14_050),
    ("spark", "", 14_050, 14_100),
    ("broker", "orders", 14_100, 14_200),
    ("operator", "total", 14_200, 14_700),
    ("target", "journal", 14_700, 14_720),
    ("target", "revenue", 14_720, 15_020),
    ("spark", "", 15_020, 15_060),
]
"""Batch 7 of the example, boot clock, which happens to agree with the reference. The wall clock is 40 ms ahead."""
STREAM = {"stream": "shop/revenue", "driver": 1}
READ = {"input": "orders", "partition": 0, "event_ms": 12_300}
ARRIVED = {"row": 0, "arrived_ms": 13_100, "arrival_error_ms": 0}
VISIBLE = {"place": "revenue", "visible_ms": 15_060, "visible_boot_ms": 15_020}
WORK = {
    ("trigger", ""): 900,
    ("broker", "orders"): 150,
    ("spark", ""): 50,
    ("operator", "total"): 500,
    ("target", "journal"): 20,
    ("target", "revenue"): 300,
    ("clock", "host-a"): 40,
}


def rows(name: str, *of_frame: dict[str, object]) -> pl.DataFrame:
    schema = getattr(frames, name.upper())
    return pl.DataFrame([{column: row.get(column) for column in schema} for row in of_frame], schema=schema)


@pytest.fixture
def example() -> AccountFacts:
    columns = ("owner", "detail", "began_ms", "ended_ms")
    segments = [STREAM | {"batch_id": 7} | dict(zip(columns, segment, strict=True)) for segment in SEGMENTS]
    looks = {"wall_ms": 14_090, "boot_ms": 14_050, "excluded_ms": 13_040, "looked_ms": 14_050}
    measured = {"at_ms": 14_050, "offset_ms": -40, "error_ms": 0}
    offsets = {"from_offset": 40, "until_offset": 41, "latest_offset": 41, "n": 1, "newest_ms": 12_300}
    of_result = {"batch_id": 7, "read_batch": 7, "row": 0, "read_row": 0, "n": 1}
    return AccountFacts(
        segments=rows("segments", *segments),
        batches=rows("batches", STREAM | {"batch_id": 7, "host": "host-a"} | looks),
        clocks=rows("clocks", STREAM | {"host": "host-a"} | measured),
        plans=rows("plans", STREAM | {"batch_id": 7, "input": "orders", "partition": 0} | offsets),
        reads=rows("reads", STREAM | READ | ARRIVED | {"batch_id": 7, "n": 1}),
        firsts=rows("firsts", STREAM | READ | ARRIVED | {"batch_id": 7}),
        results=rows("results", STREAM | READ | VISIBLE | of_result),
        windows=rows("windows", STREAM | VISIBLE | {"batch_id": 7, "end_ms": 10_000}),
        bounds=rows("bounds", {"stream": "shop/revenue", "input": "orders", "bound_ms": 2_000}),
    )


def parts(found: pl.DataFrame) -> dict[tuple[str, str], int]:
    return {(owner, detail): ms for owner, detail, ms in by_owner(found).select("owner", "detail", "ms").iter_rows()}


def test_the_example_of_the_decision(example):
    """The window that ended at 10,000 was visible at 15,060 by the wall clock, and the record of 12,300 with it."""
    ledger = Ledger.of(example)
    of_record = {("producer", "orders/0"): 800} | WORK
    assert parts(record_parts(ledger)) == of_record
    of_window = {("bound", "orders"): 2_000, ("next_record", "orders/0"): 300} | of_record
    assert parts(window_parts(ledger)) == of_window
    assert (sum(of_record.values()), sum(of_window.values())) == (2_760, 5_060)


def test_the_example_of_the_page_about_why_has_these_parts(example):
    page = (Path(__file__).parents[2] / "docs" / "why.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(?: `([^`]*)`)? \| ([\d,]+) \|(?: ([\d,]+))? \|$", page, re.MULTILINE)
    shown = {(owner, detail): [int(ms.replace(",", "") or 0) for ms in of] for owner, detail, *of in rows}
    ledger = Ledger.of(example)
    of_window, of_record = parts(window_parts(ledger)), parts(record_parts(ledger))
    assert shown == {owned: [ms, of_record.get(owned, 0)] for owned, ms in of_window.items()}
    assert "| age | | 5,060 | 2,760 |" in page


def test_a_window_whose_passing_record_is_missing_is_unknown_until_the_look(example):
    """The partition reached 12,300 in the batch, and no row of FIRSTS tells with which record."""
    found = window_parts(Ledger.of(replace(example, firsts=rows("firsts"))))
    since_look = {owned: ms for owned, ms in WORK.items() if owned[0] not in {"trigger", "broker"}}
    of_window = {("bound", "orders"): 2_000, ("unknown", "passing"): 2_050, ("broker", "orders"): 100} | since_look
    assert parts(found) == of_window


def test_a_window_that_is_sent_when_it_is_closed_waits_for_late_records(example):
    """The record of 12,300 closes the window of 9,300 with 1 s of `allowed_lateness` and a bound of 2 s."""
    closed = {"end_ms": pl.lit(9_300, pl.Int64), "allowed_ms": pl.lit(1_000, pl.Int64)}
    found = window_parts(Ledger.of(replace(example, windows=example.windows.with_columns(**closed))))
    waits = {("allowed_lateness", "revenue"): 1_000, ("bound", "orders"): 2_000, ("producer", "orders/0"): 800}
    assert parts(found) == waits | WORK


USUAL = {
    "usual_arrivals": [{"input": "orders", "per_ms": 0.001, "per_batch": 1.0}],
    "usual_lengths": [
        {"owner": "trigger", "detail": "", "usual_ms": 2_000.0},
        {"owner": "broker", "detail": "orders", "usual_ms": 100.0},
    ],
}


@pytest.mark.parametrize(
    ("cut", "usual", "owned"),
    [
        (("max_records", "orders"), USUAL, ("max_records", "orders")),
        ((None, None), USUAL, ("capacity", "shop/revenue")),
        (("max_records", "orders"), {}, ("unknown", "usual")),
    ],
)
def test_a_record_that_a_plan_left_behind_waits_for_the_next_look(example, cut, usual, owned):
    """It arrives at 12,900. The look before had found nothing, and the plan of 13,040 leaves the record behind."""
    was_left = {"arrived_ms": pl.lit(12_900, pl.Int64), "left_by": pl.lit(6, pl.Int64)}
    looks = {"wall_ms": 13_080, "boot_ms": 13_040, "excluded_ms": 12_000, "looked_ms": 13_040}
    before = STREAM | {"batch_id": 6, "input": "orders", "partition": 0} | {"host": "host-a"} | looks
    offsets = {"from_offset": 40, "until_offset": 40, "latest_offset": 41}
    offsets |= dict(zip(("cut_by", "cut_detail"), cut, strict=True))
    facts = replace(
        example,
        batches=pl.concat([rows("batches", before), example.batches]),
        plans=pl.concat([rows("plans", before | offsets), example.plans]),
        reads=example.reads.with_columns(**was_left),
        **{name: rows(name, *({"stream": "shop/revenue"} | row for row in of_name)) for name, of_name in usual.items()},
    )
    assert parts(record_parts(Ledger.of(facts))) == WORK | {
        ("producer", "orders/0"): 600,
        ("trigger", ""): 100,
        ("broker", "orders"): 140,
        owned: 1_010,
    }


LATER = [
    (8, "trigger", "", 15_060, 15_950),
    (8, "broker", "orders", 15_950, 16_000),
    (8, "operator", "total", 16_000, 16_300),
    (9, "trigger", "", 16_300, 16_450),
    (9, "broker", "orders", 16_450, 16_500),
    (9, "target", "revenue", 16_500, 16_700),
]
SLOW = {"input": "orders", "partition": 1}
LATE = {"event_ms": 12_200, "arrived_ms": 15_600}
LEFT = {"event_ms": 12_200, "arrived_ms": 13_500, "left_by": 7}
SILENT = {"setting": "idle_after", "due_ms": 15_500}
SINCE = {("broker", "orders"): 250, ("operator", "total"): 800, ("target", "revenue"): 200}


def ahead(example, *, read=None, silence=None) -> AccountFacts:
    """Partition 0 was at 9,500 when batch 7 read its record of 12,300, and may be 1,000 ahead of partition 1, which was
    at 8,000. Its record waits from 14,700 on, until partition 1 is at 8,500 (9,500 − 1,000): batch 8 looks at 16,000
    and finds what lets it go, and batch 9 sends it on.
    """
    columns = ("batch_id", "owner", "detail", "began_ms", "ended_ms")
    segments = [STREAM | dict(zip(columns, segment, strict=True)) for segment in LATER]
    looks = [(8, 14_050, 16_000), (9, 16_000, 16_500)]
    names = ("batch_id", "excluded_ms", "looked_ms")
    batches = [
        STREAM | {"host": "host-a", "wall_ms": look[2] + 40, "boot_ms": look[2]} | dict(zip(names, look, strict=True))
        for look in looks
    ]
    of_plan = ("batch_id", "partition", "from_offset", "until_offset", "latest_offset", "n", "newest_ms", "cut_by")
    was_left = read is not None and "left_by" in read
    plans = [
        (7, 0, 40, 41, 41, 1, 9_500, None),
        (7, 1, 10, 11, 12 if was_left else 11, 1, 8_000, "max_records" if was_left else None),
        (8, 0, 41, 41, 41, 0, 9_500, None),
        (8, 1, 11, 12, 12, 1, 12_200, None) if read else (8, 1, 11, 11, 11, 0, 8_000, None),
        (9, 0, 41, 41, 41, 0, 12_300, None),
    ]
    of_stream = {"stream": "shop/revenue", "input": "orders"}
    reads = [STREAM | SLOW | ARRIVED | {"batch_id": 8, "n": 1, "newest_ms": read["event_ms"]} | read] if read else []
    silences = [STREAM | SLOW | {"batch_id": 8} | silence] if silence else []
    shown = {"place": "revenue", "visible_ms": 16_740, "visible_boot_ms": 16_700}
    result = STREAM | READ | shown | {"batch_id": 9, "read_batch": 7, "row": 0, "read_row": 0, "n": 1}
    return replace(
        example,
        segments=pl.concat([example.segments, rows("segments", *segments)]),
        batches=pl.concat([example.batches, rows("batches", *batches)]),
        plans=rows(
            "plans", *(of_stream | {"cut_detail": "orders"} | dict(zip(of_plan, plan, strict=True)) for plan in plans)
        ),
        reads=pl.concat([example.reads.with_columns(newest_ms="event_ms"), rows("reads", *reads)]),
        firsts=rows("firsts"),
        silences=rows("silences", *silences),
        drifts=rows("drifts", of_stream | {"batch_id": 7, "from_ms": 14_700, "max_drift_ms": 1_000}),
        results=rows("results", result),
        windows=rows("windows", STREAM | shown | {"batch_id": 9, "end_ms": 10_000}),
        usual_arrivals=rows("usual_arrivals", of_stream | {"per_ms": 0.001, "per_batch": 2.0}),
        usual_lengths=rows(
            "usual_lengths",
            *({"stream": "shop/revenue", "owner": o, "detail": d, "usual_ms": 2_000.0} for _, o, d, *_ in LATER),
            *({"stream": "shop/revenue", "owner": o, "detail": d, "usual_ms": 2_000.0} for o, d, *_ in SEGMENTS),
        ),
    )


@pytest.mark.parametrize(
    ("slow", "owned"),
    [
        ({"read": LATE}, {("producer", "orders/1"): 900, ("trigger", ""): 900 + 500}),
        (
            {"read": LATE | {"event_ms": 15_400}},
            {("max_drift", "orders/1"): 700, ("producer", "orders/1"): 200, ("trigger", ""): 900 + 500},
        ),
        ({"read": LEFT}, {("max_records", "orders"): 1_300, ("trigger", ""): 900 + 150}),
        ({"silence": SILENT}, {("silence", "orders/1 idle_after"): 800, ("trigger", ""): 900 + 600}),
    ],
    ids=["late", "silent", "left behind", "silent for long enough"],
)
def test_what_is_ahead_waits_as_long_as_the_slow_partition_does(example, slow, owned):
    """Its time goes on as that of the record, or the silence, that let it go."""
    ledger = Ledger.of(ahead(example, **slow))
    looked = 50 if "left_by" in slow.get("read", {}) else 0
    since = SINCE | {("broker", "orders"): 250 - looked, ("spark", ""): 50, ("clock", "host-a"): 40}
    of_record = {("producer", "orders/0"): 800} | owned | since
    assert parts(record_parts(ledger)) == of_record
    assert sum(of_record.values()) == 16_740 - 12_300
    of_window = {("bound", "orders"): 2_000, ("next_record", "orders/0"): 300} | of_record
    assert parts(window_parts(ledger)) == of_window


def test_what_is_sent_on_while_others_are_behind_waited_for_the_slowest(example):
    """There was no place for more records (`max_held`). It waited from 14,700 until the look at 16,500."""
    found = parts(record_parts(Ledger.of(ahead(example))))
    assert found["max_drift", "orders/1"] == 1_800
    assert sum(found.values()) == 16_740 - 12_300


def test_a_window_behind_a_hop_waits_for_the_plan_that_reads_how_far_it_is_complete(example):
    """Batch 7 of the example says in the hop that 10,300 is passed. Its reader sees that 500 ms before it takes it."""
    reader = {"stream": "shop/report", "driver": 1}
    looks = [(0, 15_050, 15_100), (1, 15_100, 15_600)]
    names = ("batch_id", "excluded_ms", "looked_ms")
    batches = [
        reader | {"host": "host-a", "wall_ms": 15_140, "boot_ms": 15_100} | dict(zip(names, look, strict=True))
        for look in looks
    ]
    hop = reader | {"input": "revenue", "writer": STREAM["stream"], "latest_offset": 8, "n": 0}
    plans = [
        hop | {"batch_id": 0, "from_offset": 7, "until_offset": 7, "cut_by": "max_records", "cut_detail": "revenue"},
        hop | {"batch_id": 1, "from_offset": 7, "until_offset": 8},
    ]
    lived = [
        (0, "trigger", "", 14_000, 15_100),
        (1, "trigger", "", 15_100, 15_600),
        (1, "operator", "top", 15_600, 15_700),
    ]
    columns = ("batch_id", "owner", "detail", "began_ms", "ended_ms")
    segments = [reader | dict(zip(columns, segment, strict=True)) for segment in lived]
    measured = {"at_ms": 15_100, "offset_ms": -40, "error_ms": 0}
    closed = {"place": "top", "batch_id": 1, "end_ms": 10_000, "visible_ms": 15_740, "visible_boot_ms": 15_700}
    of_reader = {
        "batches": batches,
        "segments": segments,
        "plans": plans,
        "clocks": [reader | {"host": "host-a"} | measured],
        "windows": [reader | closed],
        "marks": [STREAM | VISIBLE | {"batch_id": 7, "watermark_ms": 10_300}],
        **{name: [{"stream": "shop/report"} | row for row in of_name] for name, of_name in USUAL.items()},
    }
    facts = replace(
        example, **{name: pl.concat([getattr(example, name), rows(name, *more)]) for name, more in of_reader.items()}
    )
    ledger = Ledger.of(facts)
    found = window_parts(ledger, facts.windows.filter(stream="shop/report"))
    assert parts(found) == WORK | {
        ("bound", "orders"): 2_000,
        ("next_record", "orders/0"): 300,
        ("producer", "orders/0"): 800,
        ("trigger", ""): 900 + 80,
        ("max_records", "revenue"): 500,
        ("operator", "top"): 100,
    }


def test_without_facts_nothing_has_parts():
    ledger = Ledger.of(AccountFacts())
    assert record_parts(ledger).is_empty()
    assert window_parts(ledger).is_empty()


def test_a_result_of_which_nothing_else_is_known_is_unknown(example):
    found = record_parts(Ledger.of(AccountFacts(results=example.results)))
    assert parts(found) == {("unknown", "segment"): 2_760}


def test_a_record_from_the_future_has_one_negative_part(example):
    """Its producer's clock is ahead: it was visible at 15,020 by the reference, with an event time of 16,000."""
    reads, results = (rows.with_columns(event_ms=pl.lit(16_000, pl.Int64)) for rows in (example.reads, example.results))
    future = Ledger.of(replace(example, reads=reads, results=results))
    assert parts(record_parts(future)) == {("producer", "orders/0"): -980, ("clock", "host-a"): 40}


def test_an_unfinished_window_ages_in_the_segment_that_runs(example):
    """At 20,000 the batch after the example's look of 14,050 has been stuck in `total` since 15,060."""
    running = pl.DataFrame([{**STREAM, "owner": "operator", "detail": "total", "now_ms": 20_000}], schema=RUNNING)
    ages = {"start_ms": 15_000, "waited_until_ms": 17_500, "bound_ms": 2_000}
    now = {"visible_ms": 20_040, "visible_boot_ms": 20_000, "input": "orders", "partition": 0}
    unfinished = pl.DataFrame([STREAM | ages | now], schema=OPEN)
    found = open_parts(Ledger.of(until_now(example, running)), unfinished)
    assert parts(found) == {
        ("bound", "orders"): 2_000,
        ("next_record", "orders/0"): 500,
        ("operator", "total"): 2_500,
        ("clock", "host-a"): 40,
    }


def test_a_catch_up_belongs_to_the_absence_that_made_it_necessary():
    """A record arrives each second. After 10 s without a driver a batch reads four, three more than usual."""
    looks = [(0, 0, 1, 1), (1, 1_000, 2, 2), (2, 12_000, 6, 13), (3, 13_000, 10, 14)]
    batches = pl.DataFrame(
        [{"stream": "s", "batch_id": n, "looked_ms": at, "excluded_ms": None} for n, at, _, _ in looks],
        schema_overrides={"excluded_ms": pl.Int64},
    )
    read = {-1: 0} | {n: until for n, _, until, _ in looks}
    plans = [
        {"stream": "s", "batch_id": n, "input": "orders", "partition": 0, "from_offset": read[n - 1]}
        | {"until_offset": until, "latest_offset": latest, "n": until - read[n - 1]}
        for n, _, until, latest in looks
    ]
    pieces = [
        (-(2**60), 1_000, "trigger"),
        (1_000, 2_000, "trigger"),
        (2_000, 12_000, "absence"),
        (12_000, 2**60, "trigger"),
    ]
    timeline = pl.DataFrame(
        [
            {"stream": "s", "began_ms": began, "ended_ms": ended, "owner": owner, "detail": "", "error_ms": 0}
            for began, ended, owner in pieces
        ],
        schema=TIMELINE,
    )
    usual = {"stream": "s", "input": "orders", "per_ms": 0.001, "per_batch": 1.0}
    waits = {"stream": "s", "owner": "trigger", "detail": "", "usual_ms": 1_000.0}
    facts = AccountFacts(
        plans=rows("plans", *plans),
        usual_arrivals=rows("usual_arrivals", usual),
        usual_lengths=rows("usual_lengths", waits),
    )
    debts = debts_of(facts, timeline, batches)
    owned = ["batch_id", "owner", "since", "until"]
    assert debts.waiting.select(owned).rows() == [
        (0, "unknown", 0.0, 1.0),
        (2, "absence", 0.0, 1.0),
        (3, "absence", 0.0, 1.0),
    ]
    assert debts.extra.select(owned).rows() == [(2, "absence", 0.25, 1.0), (3, "absence", 0.25, 1.0)]


def test_a_created_record_arrived_after_the_usual_delay_unless_a_look_says_otherwise():
    """Of 50 delays from 100 ms on, the 2 % quantile is 100 ms: the first."""
    partition = {"stream": "s", "input": "orders", "partition": 0}
    looks = [(0, None, 100), (1_000, 950, 2_000), (1_000, 3_000, 4_000)]
    asked = pl.DataFrame(
        [partition | {"event_ms": event, "excluded_ms": excluded, "seen_ms": seen} for event, excluded, seen in looks]
    )
    seen = pl.DataFrame([partition | {"event_ms": 0, "seen_ms": 100 + n, "n": 1} for n in range(50)])
    found = with_created_arrivals(asked, usual_delays(seen))
    assert found.select("arrived_ms", "arrival_error_ms").rows() == [(100, 100), (1_100, 900), (3_000, 1_000)]


@pytest.mark.parametrize(
    ("stamps", "offset"),
    [
        ([(1_000, 990, 1_020)], Offset(0, 20)),
        ([(9_000, 900, 1_000), (9_500, 1_450, 1_550)], Offset(8_025, 25)),
        ([(9_000, 900, 1_000), (2_000, 1_900, 2_100)], None),
        ([], None),
    ],
)
def test_looks_bound_a_brokers_clock(stamps, offset):
    """The stamp of 9,000 lies between looks of 900 and 1,000: 8,000 to 8,100 ahead; the next says 7,950 to 8,050."""
    assert stamped_offset(stamps) == offset


def test_owners_form_trees():
    for owner in OWNERS.values():
        assert owner.parent is None or owner.parent in OWNERS
    assert {name for name, owner in OWNERS.items() if not owner.has_time} == {"topic", "partition", "key", "driver"}


def test_commands_in_remedies_can_be_typed_as_they_are():
    """The parser of the command line exits where an argument is missing, as that of the topology was."""
    remedies = [remedy_of("flights", owner, "flight_updates+flight_status", "flights/status") for owner in OWNERS]
    remedies += [remedy_of("flights", owner, "", None, deed) for owner, of in OWNERS.items() for deed in of.remedies]
    typed = [options_of(words) for remedy in remedies for _, *words in commands(remedy)]
    for options in typed:
        means(options, FLIGHTS)
    assert {options["command"] for options in typed} >= {"bound", "check", "logs", "path", "plan", "whatif"}
    assert not re.findall("{.+?}", "".join(remedies))


def test_no_remedy_names_a_phase_of_spark_as_an_operator():
    """A query of a team's own job has the phase addBatch in place of an operator, and `whatif` knows no such one."""
    remedies = [remedy_of("shop", owner, phase, "shop/pairs") for owner, of in OWNERS.items() for phase in of.phases]
    assert len(remedies) == 8
    assert not [remedy for remedy in remedies if "--operator" in remedy]
    assert {options_of(words)["command"] for remedy in remedies for _, *words in commands(remedy)} == {"path"}


@pytest.mark.parametrize(
    ("became", "amount_ms", "records", "begins"),
    [
        (None, 8_800, None, "find out why what writes to the partition is late"),
        ("late", None, 2, "find out why what writes to the partition is late"),
        (None, -5_000, None, "set the clock of what writes to the partition"),
        ("quarantined", None, 1, "correct what writes to the partition; `tidemark requeue shop --dry-run`"),
        ("not produced", None, 36, "find out whether what writes to the partition runs"),
        ("duplicate", None, 3, "find out why what writes to the partition sends records more than once"),
        (None, None, 1, "correct what writes to the partition"),
    ],
)
def test_the_remedy_for_a_producer_is_about_what_it_did(became, amount_ms, records, begins):
    remedy = remedy_of("shop", "producer", "orders/0", None, deed_of(became, amount_ms, records))
    assert remedy.startswith(begins)
    for _, *words in commands(remedy):
        options_of(words)


def test_two_owners_cannot_have_one_name():
    with pytest.raises(ValueError, match="register the owner broker"):
        register(OWNERS["broker"])
