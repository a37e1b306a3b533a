"""Sums of aggregates are exact, also after retractions, and averages are those of exact sums.

Neither the order nor the cut into batches matters.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.kernels.aggregates.aggregation import Aggregation
from tidemark.kernels.aggregates.function import OLD
from tidemark.kernels.aggregates.functions import aggregate_functions
from tidemark.kernels.columns.exact import PARTS, Sums
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.columns.values import value_text
from tidemark.model.kinds.aggregate import Aggregate
from tidemark.model.settings.emission import Emission

CALLS = {"total": ("sum", "v"), "mean": ("avg", "v"), "n": ("count", "v")}
DOUBLE = st.one_of(st.sampled_from([0.1, 0.2, 0.3, 1e16, 1.0, 5e-324, math.nan, math.inf, -math.inf]), st.floats())
FINITE = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(-(2**63), 2**63 - 1)
EXACT = Context(prec=200, rounding=ROUND_HALF_UP)
DECIMALS = st.sampled_from(
    [(12, 2), (1, 0), (28, 10), (29, 5), (34, 34), (35, 2), (38, 0), (38, 2), (38, 37), (38, 38)]
)
Values = list[Any]


def kernel(kind: pl.DataType) -> Aggregation:
    schema = {"id": pl.String(), "v": kind, **META_SCHEMA}
    operator = Aggregate(name="a", key=("id",), windows=None, aggregates=CALLS, select={}, emission=Emission())
    return Aggregation(operator, aggregate_functions(CALLS, schema), schema)


def states(of: Aggregation, pairs: list[tuple[Any, Any]]) -> pl.DataFrame:
    """Returns states of records that add one value and retract another.

    They are the first and the second of a pair.
    """
    meta = {"_key": None, "_timestamp_ms": 0, "_partition": 0, "_offset": 0, "_task": 0, "_headers": None}
    rows = [{"id": "a", "v": new, "_deleted": new is None, **meta, OLD: {"v": old}} for new, old in pairs]
    schema = {**of.schema, OLD: pl.Struct({"v": of.schema["v"]})}
    return of.states_of(pl.DataFrame(rows, schema=schema).with_columns(_key=pl.lit("a")))


def text(of: Aggregation, state: pl.DataFrame) -> str | None:
    """A state as `state_changes` has it; None where there is none."""
    columns = [c for c in of.state_schema if c.startswith("@")]
    return None if state.is_empty() else state.select(value_text(columns, state.schema)).item()


def merged(of: Aggregation, rows: pl.DataFrame, cuts: list[int]) -> pl.DataFrame:
    known = rows.clear()
    for start, end in zip([0, *cuts], [*cuts, rows.height], strict=True):
        known = of.merged(pl.concat([known, rows[start:end]])).select(rows.columns)
    return known


def check_taken_back(kind: pl.DataType, kept: Values, gone: Values, data: st.DataObject) -> None:
    of = kernel(kind)
    steps = [(v, None) for v in [*kept, *gone]] + [(None, v) for v in gone]
    in_order = states(of, data.draw(st.permutations(steps)))
    cuts = sorted(data.draw(st.lists(st.integers(0, in_order.height), max_size=3)))
    plain = merged(of, states(of, [(v, None) for v in kept] or [(None, None)]), [])
    found = merged(of, in_order, cuts)
    if steps:
        assert text(of, found) == text(of, plain)
        last, want = of.running(in_order.clear(), in_order)[-1], of.results(plain)
        assert str(last.select(*CALLS).row(0)) == str(want.select(*CALLS).row(0))  # text, since NaN is not NaN


@settings(max_examples=settings().max_examples // 2)  # each merges states three times
@given(st.lists(DOUBLE, max_size=6), st.lists(DOUBLE, max_size=6), st.data())
def test_doubles_that_are_taken_back_leave_nothing(kept, gone, data):
    check_taken_back(pl.Float64(), kept, gone, data)


@given(st.lists(WHOLE, max_size=6), st.lists(WHOLE, max_size=6), st.data())
def test_integers_that_are_taken_back_leave_nothing(kept, gone, data):
    check_taken_back(pl.Int64(), kept, gone, data)


@given(st.lists(st.lists(FINITE, max_size=5), min_size=1, max_size=4))
def test_a_sum_is_rounded_once(rows):
    sums = Sums.of(pl.Series(rows, dtype=PARTS))
    for values, nearest, parts in zip(rows, sums.rounded(), sums.expansions(), strict=True):
        whole = sum(map(Fraction, values), Fraction(0))
        assert sum(map(Fraction, parts), Fraction(0)) == whole
        assert nearest == as_double(whole)


def as_double(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


@given(st.lists(WHOLE, min_size=1, max_size=6))
def test_a_sum_of_integers_may_leave_64_bits_and_come_back(values):
    of = kernel(pl.Int64())
    rows = states(of, [(v, None) for v in values])
    running = of.running(rows.clear(), rows)["total"].to_list()
    exact = [sum(values[: n + 1]) for n in range(len(values))]
    assert running == [total if -(2**63) <= total < 2**63 else None for total in exact]


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Draws decimals of a type, many of them close to its ends."""
    most = 10**precision - 1
    digits = (
        st.integers(-most, most)
        | st.integers(-min(most, 200), min(most, 200))
        | st.sampled_from([most, -most, most // 2])
    )
    return digits.map(lambda unscaled: Decimal(unscaled).scaleb(-scale, EXACT))


@given(DECIMALS.flatmap(lambda kind: st.tuples(st.just(kind), *[st.lists(decimals(*kind), max_size=6)] * 2)), st.data())
def test_decimals_that_are_taken_back_leave_nothing(drawn, data):
    kind, kept, gone = drawn
    check_taken_back(pl.Decimal(*kind), kept, gone, data)


def fitting(value: Decimal, precision: int, scale: int) -> Decimal | None:
    """Returns *value* as a decimal of that type; None where it has more digits."""
    rounded = value.quantize(Decimal(1).scaleb(-scale, EXACT), context=EXACT)
    return rounded if rounded.copy_abs().scaleb(scale, EXACT) < 10**precision else None


@given(DECIMALS.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(decimals(*kind), min_size=1, max_size=6))))
def test_sums_and_averages_of_decimals_have_the_types_of_spark(drawn):
    (precision, scale), values = drawn
    of = kernel(pl.Decimal(precision, scale))
    rows = states(of, [(v, None) for v in values])
    running = of.running(rows.clear(), rows)
    sum_kind = min(precision + 10, 38), scale
    average_kind = min(precision + 4, 38), min(scale + 4, 38)
    assert running.schema["total"] == pl.Decimal(*sum_kind)
    assert running.schema["mean"] == pl.Decimal(*average_kind)
    total = Decimal(0)
    for n, (value, found) in enumerate(zip(values, running.to_dicts(), strict=True), 1):
        total = EXACT.add(total, value)
        assert found["total"] == fitting(total, *sum_kind)
        assert found["mean"] == fitting(EXACT.divide(total, n), *average_kind)
    assert of.results(merged(of, rows, [1])).select(*CALLS).row(0) == running.select(*CALLS).row(-1)


@given(DECIMALS.flatmap(lambda kind: st.tuples(st.just(kind), st.lists(decimals(*kind), min_size=1, max_size=6))))
def test_a_decimal_with_which_a_result_does_not_fit_is_refused(drawn):
    (precision, scale), values = drawn
    of = kernel(pl.Decimal(precision, scale))
    rows = states(of, [(v, None) for v in values])
    kept: list[Decimal] = []
    for value, reason in zip(values, of.refusals(rows.clear(), rows), strict=True):
        total = Decimal(0)
        for each in (*kept, value):
            total = EXACT.add(total, each)
        fits_sum = fitting(total, min(precision + 10, 38), scale)
        fits_mean = fitting(EXACT.divide(total, len(kept) + 1), min(precision + 4, 38), min(scale + 4, 38))
        assert (reason is None) == (fits_sum is not None and fits_mean is not None), reason
        kept += [value] if reason is None else []
