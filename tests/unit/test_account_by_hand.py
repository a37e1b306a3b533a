"""Accounts of time that were worked out by hand: the example of decision 144, and rules that need few numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tidemark.account import facts as frames
from tidemark.account.arrivals import Offset, stamped_offset, usual_delays, with_created_arrivals
from tidemark.account.debts import debts_of
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.owners import OWNERS
from tidemark.account.owners.registry import register
from tidemark.account.records import record_parts
from tidemark.account.steps import by_owner
from tidemark.account.timeline import TIMELINE
from tidemark.account.unfinished import OPEN, RUNNING, open_parts, until_now
from tidemark.account.windows import window_parts
from tidemark.cli.main import COMMANDS

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
        (("max_drift", "orders/1"), {}, ("max_drift", "orders/1")),
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


def test_remedies_name_commands_that_exist():
    named = {command for owner in OWNERS.values() for command in re.findall(r"`tidemark (\w+)", owner.remedy)}
    assert named <= {name for name, _, _ in COMMANDS}
    assert named >= {"bound", "logs", "path", "whatif"}


def test_two_owners_cannot_have_one_name():
    with pytest.raises(ValueError, match="register broker"):
        register(OWNERS["broker"])
