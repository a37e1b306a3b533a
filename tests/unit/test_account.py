"""The account of time agrees with a simulation that knows where each ms went."""

from __future__ import annotations

from collections import Counter
from random import Random

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.lives import BASE_MS, Life, Owned, Result

from support.stored_facts import facts_of, stored_facts
from tidemark.account.ledger import Ledger
from tidemark.account.records import record_parts
from tidemark.account.steps import by_owner
from tidemark.account.windows import window_parts

SAMPLED = 40
"""So many rows of each dense life are compared."""
Parts = dict[Owned, tuple[int, int | None]]


def booked(parts: pl.DataFrame) -> dict[int, Parts]:
    found: dict[int, Parts] = {}
    for row in by_owner(parts).iter_rows(named=True):
        found.setdefault(row["result"], {})[row["owner"], row["detail"]] = row["ms"], row["error_ms"]
    return found


@given(st.integers(0, 2**40), st.booleans())
def test_each_part_of_an_age_is_what_happened(seed, exact):
    life = Life(Random(seed), exact=exact)
    ledger = Ledger.of(facts_of(life.rows))
    for found, results in (record_parts(ledger), life.results), (window_parts(ledger), life.windows):
        accounts = booked(found)
        for n, result in enumerate(results):
            agrees(accounts.get(n, {}), life.truth(result), result.wall_ms - result.start_ms, exact=exact)


@settings(max_examples=settings().max_examples // 6)  # each has thousands of records
@given(st.integers(0, 2**40), st.booleans())
def test_a_row_of_many_records_has_their_mean_parts(seed, exact):
    """What is stored of them is right to 1 % of the age, and windows stay exact.

    Behind a hop or a topic only the arrival of the writer's row is known of one of its records, and lengths in a cell
    differ by 4 %. So does the record that closes a session.
    """
    life = Life(Random(seed), exact=exact, dense=True)
    exact &= life.is_stamped
    facts, members = stored_facts(life)
    assert sum(map(len, members)) == len(life.results)
    ledger = Ledger.of(facts)
    records, windows = booked(record_parts(ledger)), booked(window_parts(ledger))
    for row in Random(seed).sample(range(len(members)), min(SAMPLED, len(members))):
        results = [life.results[n] for n in members[row]]
        age_ms = sum(result.wall_ms - result.start_ms for result in results) / len(results)
        truth = Counter[Owned]()
        for result in results:
            truth.update({owned: ms / len(results) for owned, ms in life.truth(result).items()})
        share = 0.04 if any(result.record.writer for result in results) else 0.01
        agrees(records.get(row, {}), truth, age_ms, exact=exact, more_ms=share * (abs(age_ms) + 1_000) + 10)
    for n, window in enumerate(life.windows):
        age_ms = window.wall_ms - window.start_ms
        is_session = (window.start_ms - BASE_MS) % life.every_ms != 0
        if is_session and life.has_topics:
            continue  # which of the records that a batch wrote comes first in a topic is not told
        share = 0.04 if life.has_topics or is_session else 0
        more_ms = share * (abs(age_ms) + 1_000) + 10
        agrees(windows.get(n, {}), life.truth(window), age_ms, exact=exact, more_ms=more_ms)


@given(st.integers(0, 2**40))
def test_a_missing_fact_makes_exactly_its_time_unknown(seed):
    life = Life(Random(seed))
    frame = life.lose(Random(seed))
    ledger = Ledger.of(facts_of(life.rows))
    records, windows = booked(record_parts(ledger)), booked(window_parts(ledger))
    for n, result in enumerate(life.results):
        agrees(one_unknown(records.get(n, {})), truth_of(life, result), result.wall_ms - result.start_ms, exact=True)
    for n, window in enumerate(life.windows):
        parts, age_ms = one_unknown(windows.get(n, {})), window.wall_ms - window.start_ms
        if frame in ("segments", "heartbeats"):
            agrees(parts, truth_of(life, window), age_ms, exact=True)
        assert sum(ms for ms, _ in parts.values()) == age_ms


def truth_of(life: Life, result: Result) -> Counter[Owned]:
    truth = one_unknown({owned: (ms, 0) for owned, ms in life.truth(result).items()})
    return Counter({owned: ms for owned, (ms, _) in truth.items()})


def one_unknown(parts: Parts) -> Parts:
    """The parts, with one for all that is unknown: which fact is missing is said in words of the product's own."""
    missing = {owned: part for owned, part in parts.items() if owned[0] == "unknown"}
    known = {owned: part for owned, part in parts.items() if owned[0] != "unknown"}
    unknown: Parts = {("unknown", ""): (sum(ms for ms, _ in missing.values()), 0)} if missing else {}
    return known | unknown


def agrees(parts: Parts, truth: Counter[Owned], age_ms: float, *, exact: bool, more_ms: float = 0) -> None:
    """Checks that the parts add up to the age, and that each is true within its clocks' errors plus *more_ms*."""
    # A mean age is not a whole number.
    assert abs(sum(ms for ms, _ in parts.values()) - age_ms) < 1, (parts, truth)
    errors = [error for _, error in parts.values()]
    error_ms = 10**9 if None in errors else max(errors, default=10**9)
    # Each piece of work is shared out among debts, and cut to ms.
    error_ms = (10 if exact else error_ms) + more_ms
    for owned in {*parts, *truth}:
        assert abs(parts.get(owned, (0, 0))[0] - truth[owned]) <= error_ms, (owned, parts, truth)
    if None not in errors:
        unknown_ms = sum(ms for (owner, _), (ms, _) in parts.items() if owner == "unknown")
        assert unknown_ms <= error_ms or any(owner == "unknown" for owner, _ in truth), (parts, truth)
