"""Rows that are split and put in order."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.columns import splitting
from tidemark.kernels.columns.splitting import in_order, split


@pytest.mark.parametrize(
    ("marks", "chosen", "others"),
    [
        ([True, False, None], [0], [1, 2]),
        ([True, True], [0, 1], []),
        ([False, None], [], [0, 1]),
        ([], [], []),
    ],
)
def test_null_chooses_no_row(marks, chosen, others):
    rows = pl.DataFrame({"n": [*range(len(marks))], "mark": pl.Series(marks, dtype=pl.Boolean)})
    some, rest = split(rows, pl.col("mark"))
    assert (some["n"].to_list(), rest["n"].to_list()) == (chosen, others)
    assert some.schema == rest.schema == rows.schema


PLACE = st.tuples(st.integers(0, 3), st.integers(0, 99))


@given(st.lists(PLACE, unique=True, max_size=40), st.booleans())
def test_rows_are_in_order_of_partition_and_offset(places, are_together):
    if are_together:
        # As Spark returns them: by partition, which come in any order.
        numbers = list(dict.fromkeys(number for number, _ in places))
        places = [place for number in numbers for place in sorted(places) if place[0] == number]
    rows = pl.DataFrame(places, schema={"partition": pl.Int32, "offset": pl.Int64}, orient="row")
    assert in_order(rows, "partition", "offset").rows() == sorted(places)


def test_rows_of_many_short_runs_are_sorted(monkeypatch):
    monkeypatch.setattr(splitting, "MOST_RUNS", 2)
    rows = pl.DataFrame({"partition": [1, 0, 1], "offset": [5, 6, 4]})
    assert in_order(rows, "partition", "offset").rows() == [(0, 6), (1, 4), (1, 5)]
