"""What usually comes, which owner moves which measure, and whose a broken contract is."""

from __future__ import annotations

import tomllib

import numpy as np
import polars as pl
import pytest

from support.topologies import aggregate, repartition, sink, source, table, topology_of
from tidemark.account.configured import holding_setting
from tidemark.account.contract import owner_of_culprit
from tidemark.account.counts import DAY_MS, HOUR_MS, TimeSpan
from tidemark.account.explanation import Answer
from tidemark.account.moves import can_move
from tidemark.account.owners.registry import OWNERS
from tidemark.account.usual_numbers import is_usual, numbers_before, usual_number
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.contract import CONTRACT
from tidemark.model.measures.latency import LATENCY_P50, LATENCY_P90, LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.measures.records import RECORDS
from tidemark.model.measures.registry import MEASURES
from tidemark.model.measures.schema_changes import SCHEMA_CHANGES
from tidemark.model.measures.shares import LATE_SHARE, QUARANTINED_SHARE
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.topology import parse
from tidemark.semantics.moved import Moved

MINUTE_MS = 60_000
LATENCIES = (LATENCY_P50, LATENCY_P90, LATENCY_P99)
SHOP = parse(
    tomllib.loads(
        topology_of(
            events=source("id string, amount double", sub_topology="reads"),
            newest=table(columns=["amount"]),
            board=sink("newest", table="board"),
            by_id=repartition("newest", id=["id"], key=["amount"], columns=["amount"]),
            sums=aggregate("by_id", sub_topology="sums", aggregates={"n": "count(*)"}),
            totals=sink("sums", table="totals"),
        )
    ),
    file="shop.toml",
)


def test_one_rule_says_which_setting_holds_records():
    """A window holds its records until it ends, with or without a wait for late ones."""

    def setting(**keys: object) -> str | None:
        counts = aggregate(key=["id"], aggregates={"n": "count(*)"}, **keys)
        text = topology_of(events=source("id string"), counts=counts, out=sink("counts", table="out"))
        return holding_setting(parse(tomllib.loads(text), file="shop.toml").operators["counts"])

    closes = {"window": {"tumbling": "10 s"}, "strategy": "on_window_close"}
    assert setting() is None
    assert setting(strategy="periodic", interval="5 s") == "interval"
    assert setting(**closes) == "window"
    assert setting(**closes, allowed_lateness="5 s") == "allowed_lateness"
    assert setting(**{**closes, "window": {"session": "10 s"}}) == "window"


def of_days(days: int, by_hour: dict[int, int]) -> pl.DataFrame:
    """Returns reads of a batch a minute, each of so many records at an hour of the day, and else of 10."""
    minutes = np.arange(days * DAY_MS // MINUTE_MS)
    n = [by_hour.get(minute * MINUTE_MS % DAY_MS // HOUR_MS, 10) for minute in minutes]
    return pl.DataFrame({"finished_ms": minutes * MINUTE_MS, "n": n})


def test_what_usually_comes_is_that_of_the_same_hour_on_days_before():
    """At 03:00 a record a minute comes, at 12:00 ten: an hour before or after is no hour of the same kind."""
    reads = of_days(4, dict.fromkeys(range(2, 5), 1))
    night_ms, noon_ms = 3 * DAY_MS + 3 * HOUR_MS, 3 * DAY_MS + 12 * HOUR_MS
    known = reads.filter(pl.col("finished_ms") <= noon_ms)
    assert usual_number(known.filter(pl.col("finished_ms") <= night_ms), TimeSpan(night_ms, night_ms + 600_000)) == 10
    assert usual_number(known, TimeSpan(noon_ms, noon_ms + 600_000)) == 100


def test_without_days_before_it_is_that_of_the_last_day():
    reads = of_days(1, {}).filter(pl.col("finished_ms") <= 6 * HOUR_MS)
    assert usual_number(reads, TimeSpan(6 * HOUR_MS, 6 * HOUR_MS + 5 * MINUTE_MS)) == 50


def test_a_time_longer_than_the_history_has_the_number_of_a_shorter_one_in_proportion():
    """In 30 minutes 10 records a minute came: so 1,200 are expected in two hours."""
    reads = of_days(1, {}).filter(pl.col("finished_ms") <= 30 * MINUTE_MS)
    assert usual_number(reads, TimeSpan(30 * MINUTE_MS, 150 * MINUTE_MS)) == pytest.approx(1_200)


def test_a_time_that_begins_between_batches_is_compared_with_such_times():
    """Records come every 10 s. The 66 s from 5 s after a batch on have seven batches, those from a batch on six."""
    times, n = np.arange(0, 300_000, 10_000), np.full(30, 3)
    numbers = numbers_before(times, n, TimeSpan(295_000, 361_000))
    assert {*numbers.tolist()} == {21}


@pytest.mark.parametrize(
    "n", [[], [0] * 20, [3] * 5], ids=["no batch", "batches that read nothing", "fewer than five such times"]
)
def test_without_history_nothing_is_usual(n):
    times = np.arange(len(n)) * 10_000
    assert len(numbers_before(times, np.array(n, np.int64), TimeSpan(45_000, 65_000))) == 0


def test_a_share_is_as_usual_within_three_standard_errors():
    """Of 100 records 2 % are 2 with a standard error of 1.4: six are as usual, and seven are not."""
    assert [is_usual(k / 100, 0.02, 100) for k in (6, 7)] == [True, False]
    assert not is_usual(1 / 1_200, 0, 1_200)


def test_every_measure_is_made_of_something_that_owners_move():
    assert all(measure.moves for measure in MEASURES.values())
    moved = frozenset().union(*(owner.moves for owner in OWNERS.values()))
    assert moved == {*Moved}


@pytest.mark.parametrize(
    ("owner", "moved", "not_moved"),
    [
        ("producer", [*LATENCIES, RECORDS, LATE_SHARE], [OPERATOR_LATENCY_P50]),
        ("operator", [OPERATOR_LATENCY_P50, RECORDS, CONTRACT], [LATE_SHARE]),
        ("clock", [*LATENCIES], [RECORDS, QUARANTINED_SHARE]),
        ("bound", [*LATENCIES, STALENESS], [LATE_SHARE, RECORDS]),
        ("key", [LATE_SHARE], [CONTRACT, SCHEMA_CHANGES]),
        ("topic_volume", [*LATENCIES, OPERATOR_LATENCY_P50], [RECORDS]),
        ("absence", [STALENESS, RECORDS], [OPERATOR_LATENCY_P50, QUARANTINED_SHARE]),
    ],
)  # fmt: skip
def test_an_owner_moves_only_what_it_can(owner, moved, not_moved):
    assert [measure for measure in (*moved, *not_moved) if can_move(owner, measure)] == moved


@pytest.mark.parametrize(
    ("measure", "culprit", "owner", "detail"),
    [
        (COMPLETENESS, "newest", "operator", "newest"),
        (CONTRACT, "sums", "operator", "sums"),
        (CONTRACT, "reads", "driver", "play/reads"),
        (CONTRACT, "incidents", "target", "incidents"),
        (SCHEMA_CHANGES, "events", "topic", "events"),
    ],
)
def test_a_culprit_is_an_owner_without_an_amount(measure, culprit, owner, detail):
    (leaf,) = owner_of_culprit(SHOP, measure, culprit).leaves
    assert (leaf.owner, leaf.detail, leaf.amount_ms, leaf.records) == (
        owner,
        detail,
        None,
        None,
    )


def test_a_broken_contract_without_a_culprit_names_nobody():
    found = owner_of_culprit(SHOP, CONTRACT, None, broken=3)
    assert (found.answer, found.leaves, found.broken) == (Answer.NOT_KNOWN, (), 3)
