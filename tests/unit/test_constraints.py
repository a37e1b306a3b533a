"""Constraints of tables, evaluated by hand; tests/spark/test_constraints.py compares them with Spark."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import polars as pl
import pytest

from tidemark.kernels.sql.constraints import Constraint, NotEvaluable, violations

COLUMNS = (
    ("id", "string"), ("amount", "double"), ("n", "integer"), ("price", "decimal(10,2)"), ("day", "date"),
    ("open", "boolean"),
)  # fmt: skip
ROWS = pl.DataFrame(
    [
        ("a", 1.5, 1, Decimal("9.99"), date(2026, 1, 31), True),
        ("b", -1.0, 2**31 - 1, Decimal("0.00"), date(2025, 12, 31), False),
        (None, None, None, None, None, None),
        ("c", float("nan"), 0, Decimal("-1.00"), date(2026, 2, 1), None),
    ],
    schema={
        "id": pl.String(), "amount": pl.Float64(), "n": pl.Int32(), "price": pl.Decimal(10, 2), "day": pl.Date(),
        "open": pl.Boolean(),
    },
    orient="row",
)  # fmt: skip
ACCEPTED = {
    "amount > 0": [0, 3],  # NaN is greater than all other numbers
    "amount > 0 OR amount IS NULL": [0, 2, 3],
    "NOT (amount > 0)": [1],
    "`ID` in ('a', 'c')": [0, 3],
    "id LIKE 'a%' or n < 1": [0, 3],
    "length(id) = 1 AND n BETWEEN 0 AND 5": [0, 3],
    "n + 1 > 0": [0, 3],  # Spark ends the write for a sum that is not an int
    "n = 0 OR n + 1 > 0": [0, 3],
    "price >= 0": [0, 1],
    "price > 0.5": [0],
    "day >= DATE '2026-01-01'": [0, 3],
    "open": [0],
    "open IS NOT TRUE": [1, 2, 3],
    "id <=> null": "does not know 'null' here",
    "n % 2 = 0": "cannot read '% 2 = 0'",
    "abs(n) > 0": "does not know the function abs of integer",
    "other > 0": "does not know the column 'other'",
    "day > current_date()": "does not know ')' here",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_a_row_is_refused_unless_the_condition_is_true(text):
    constraint, expected = Constraint("constraint", "x", text, COLUMNS), ACCEPTED[text]
    if isinstance(expected, str):
        with pytest.raises(NotEvaluable) as refused:
            violations(ROWS, [constraint])
        assert expected in str(refused.value)
    else:
        assert violations(ROWS, [constraint]).is_null().arg_true().to_list() == expected


def test_the_first_constraint_that_refuses_a_row_is_told_with_the_values_that_it_read():
    constraints = [Constraint("constraint", "positive", "amount > 0", COLUMNS),
                   Constraint("column", "id", "`id` IS NOT NULL", COLUMNS)]  # fmt: skip
    assert violations(ROWS, constraints).to_list() == [
        None,
        "constraint positive (amount > 0) refuses amount = -1.0",
        "constraint positive (amount > 0) refuses amount = null",
        None,
    ]
    # A column that the batch lacks is null in the table.
    assert (
        violations(ROWS.drop("id"), constraints[1:]).to_list() == ["column id (`id` IS NOT NULL) refuses id = null"] * 4
    )


OTHERWISE_IN_SPARK = [
    "n / 2 > 0", "n % 2 = 0", "n div 2 > 0", "s > 1", "n > '1'", "s = 'it''s'", r"s = 'a\\n'", 's = "a"',
    "n", "abs(n) > 0",
    "n > 5L", "xs = 1", "nothing > 1", "n > 0 -- why", "n > /* why */ 0", "n in (1, null)", "n = null", "s rlike 'a'",
    "s LIKE 'a!%' ESCAPE '!'", r"s LIKE 'a\\%'", "n >", "(n > 0", "n > 0)", "current_date() > day", "day > 'soon'",
    "at > TIMESTAMP '2026-01-31 12:00:00'", "at > '2026-01-31T12:00:00Z'", "at > day", "cast(n as string) = '1'", "!b",
    "b > false", "n > 0 n", "f = n", "d = p", "p + 1 > 0", "-p < 0", "n + 0.5 > 1", "f * 2 > 1", "xs[0] > 0", "a.b > 0",
    "l in (9007199254740992, 1.5e0)", "p in (1.5, 1.5e0)",
    "p in (99999999999999999999999999999999, 0.0000000001)",
    "case when n > 0 then true end", "s || t = 'ab'", "day > date '2026-02-30'", "n > 99999999999999999999", "",
]  # fmt: skip
"""Conditions that Spark may read in another way, or that only Spark knows."""
TYPES = (
    ("n", "integer"), ("m", "integer"), ("l", "long"), ("d", "double"), ("f", "float"), ("p", "decimal(10,2)"),
    ("s", "string"), ("t", "string"), ("b", "boolean"), ("day", "date"), ("at", "timestamp"), ("xs", "{}"),
)  # fmt: skip


def test_a_condition_that_may_mean_something_else_in_spark_is_not_evaluated():
    for text in OTHERWISE_IN_SPARK:
        with pytest.raises(NotEvaluable):
            pytest.fail(f"{text}: {Constraint('constraint', 'x', text, TYPES).condition}")
