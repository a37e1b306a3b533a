"""The aggregate functions, against Python's own arithmetic over the same values."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.errors import InvalidArgument
from tidemark.kernels.aggregates.functions import OLD, AggregateFunction, aggregate_functions
from tidemark.kernels.columns.schemas import META_SCHEMA

CALLS = {name: (name, "v") for name in ("count", "sum", "avg", "min", "max", "first", "last")} | {"n": ("count", "*")}
SCHEMA = {"v": pl.Int64(), **META_SCHEMA}
VALUE = st.none() | st.integers(-5, 5)
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), VALUE, st.integers(0, 6)), max_size=12)
Record = tuple[str, int | None, int]


def frame(records: list[Record]) -> pl.DataFrame:
    rows = [(v, key, at_ms, 0, n, 0, False, None, at_ms, False, None) for n, (key, v, at_ms) in enumerate(records)]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def states(functions: tuple[AggregateFunction, ...], rows: pl.DataFrame) -> pl.DataFrame:
    columns = {name: state for f in functions for name, state in f.of_rows(rows).items()}
    return rows.with_columns(**columns).select("_key", *(c for f in functions for c in f.schema))


def merged(functions: tuple[AggregateFunction, ...], rows: pl.DataFrame) -> pl.DataFrame:
    groups = rows.group_by("_key", maintain_order=True)
    return groups.agg(**{name: state for f in functions for name, state in f.merged().items()})


def plain(records: list[Record]) -> dict[str, Any]:
    """Aggregates the records of one key in plain Python."""
    known = [(at_ms, value) for _, value, at_ms in records if value is not None]
    values = [value for _, value in known]
    return {
        "n": len(records),
        "count": len(values),
        "sum": sum(values) if values else None,
        "avg": sum(values) / len(values) if values else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "first": min(known, key=lambda pair: pair[0])[1] if known else None,
        "last": max(reversed(known), key=lambda pair: pair[0])[1] if known else None,
    }


@given(RECORDS)
def test_running_aggregates_cover_all_records_so_far(records):
    functions = aggregate_functions(CALLS, SCHEMA)
    rows = states(functions, frame(records))
    running = rows.with_columns(**{f.name: f.running(rows) for f in functions}).to_dicts()
    for number, row in enumerate(running):
        so_far = [record for record in records[: number + 1] if record[0] == row["_key"]]
        assert {name: row[name] for name in CALLS} == plain(so_far)


@given(RECORDS, st.integers(0, 12))
def test_states_merge_whatever_was_merged_before(records, cut):
    functions = aggregate_functions(CALLS, SCHEMA)
    rows = states(functions, frame(records))
    twice = merged(functions, pl.concat([merged(functions, rows[:cut]), rows[cut:]]))
    for row in twice.with_columns(**{f.name: f.result() for f in functions}).to_dicts():
        assert {name: row[name] for name in CALLS} == plain([r for r in records if r[0] == row["_key"]])


def test_what_was_replaced_is_taken_back():
    functions = aggregate_functions({name: CALLS[name] for name in ("n", "count", "sum", "avg")}, SCHEMA)
    rows = frame([("a", 5, 1), ("a", 7, 2), ("a", None, 3)]).with_columns(
        pl.Series(OLD, [None, {"v": 5}, {"v": 7}], pl.Struct({"v": pl.Int64()})),
        _deleted=pl.Series([False, False, True]),
    )
    of_rows = states(functions, rows)
    running = of_rows.select(**{f.name: f.running(of_rows) for f in functions})
    assert running.rows(named=True) == [
        {"n": 1, "count": 1, "sum": 5, "avg": 5.0},
        {"n": 1, "count": 1, "sum": 7, "avg": 7.0},
        {"n": 0, "count": 0, "sum": None, "avg": None},
    ]


def test_distinct_counts_are_within_5_percent_and_ignore_repeats():
    (distinct,) = aggregate_functions({"d": ("approx_distinct", "v")}, SCHEMA)
    records = [("a", number % 20_000, 0) for number in range(40_000)]
    rows = states((distinct,), frame(records))
    running = distinct.running(rows)
    assert running[19_999] == pytest.approx(20_000, rel=0.05)
    assert running[39_999] == running[19_999]
    assert running[:3].to_list() == [1, 2, 3]
    (row,) = merged((distinct,), rows).with_columns(d=distinct.result()).to_dicts()
    assert row["d"] == running[39_999]


def test_nulls_are_no_values():
    (distinct,) = aggregate_functions({"d": ("approx_distinct", "v")}, SCHEMA)
    rows = states((distinct,), frame([("a", None, 0), ("a", 3, 0), ("a", None, 0)]))
    assert distinct.running(rows).to_list() == [0, 1, 1]


@pytest.mark.parametrize(
    ("call", "says"), [(("sum", "name"), "needs a number"), (("max", "w"), "there is no column w")]
)
def test_a_column_that_does_not_fit_is_refused(call, says):
    with pytest.raises(InvalidArgument, match=says):
        aggregate_functions({"x": call}, {"name": pl.String(), **SCHEMA})
