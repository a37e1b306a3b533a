"""The account of time agrees with a simulation that knows where each ms went."""

from __future__ import annotations

from collections import Counter
from random import Random

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from reference.lives import Life, Owned, Result

from tidemark.account import facts as frames
from tidemark.account.facts import AccountFacts
from tidemark.account.ledger import Ledger
from tidemark.account.records import record_parts
from tidemark.account.windows import window_parts


def facts_of(rows) -> AccountFacts:
    return AccountFacts(
        **{name: pl.DataFrame(of_frame, schema=getattr(frames, name.upper())) for name, of_frame in rows.items()}
    )


def booked(parts: pl.DataFrame) -> dict[int, dict[Owned, tuple[int, int | None]]]:
    found: dict[int, dict[Owned, tuple[int, int | None]]] = {}
    for row in parts.iter_rows(named=True):
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


def one_unknown(parts: dict[Owned, tuple[int, int | None]]) -> dict[Owned, tuple[int, int | None]]:
    """The parts, with one for all that is unknown: which fact is missing is said in words of the product's own."""
    missing = {owned: part for owned, part in parts.items() if owned[0] == "unknown"}
    known = {owned: part for owned, part in parts.items() if owned[0] != "unknown"}
    unknown = {("unknown", ""): (sum(ms for ms, _ in missing.values()), 0)} if missing else {}
    return known | unknown


def agrees(parts: dict[Owned, tuple[int, int | None]], truth: Counter[Owned], age_ms: int, *, exact: bool) -> None:
    """The parts add up to the age, and each is true within the errors of the clocks."""
    assert sum(ms for ms, _ in parts.values()) == age_ms, (parts, truth)
    errors = [error for _, error in parts.values()]
    error_ms = 10**9 if None in errors else max(errors, default=10**9)
    # Each piece of work is shared out among debts, and cut to ms.
    error_ms = 10 if exact else error_ms
    for owned in {*parts, *truth}:
        assert abs(parts.get(owned, (0, 0))[0] - truth[owned]) <= error_ms, (owned, parts, truth)
    if None not in errors:
        unknown_ms = sum(ms for (owner, _), (ms, _) in parts.items() if owner == "unknown")
        assert unknown_ms <= error_ms or any(owner == "unknown" for owner, _ in truth), (parts, truth)
