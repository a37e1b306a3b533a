"""Constraints of a table mean here what they mean in Spark.

Delta's protocol asks that a CHECK is true for each row. A null is not true, so Delta refuses such a row as it refuses
one for which the condition is false (`CheckDeltaInvariant`).
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import ArithmeticException

from tidemark.kernels.sql.constraints import Constraint, violations
from tidemark.storage.delta.requirements import Requirements

INT, LONG = 2**31 - 1, 2**63 - 1
AT = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("n", pa.int32()), ("m", pa.int32()), ("l", pa.int64()), ("small", pa.int16()), ("d", pa.float64()),
        ("f", pa.float32()), ("p", pa.decimal128(10, 2)), ("s", pa.string()), ("t", pa.string()), ("b", pa.bool_()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("a b", pa.int32()), ("xs", pa.list_(pa.int32())),
    ]
)  # fmt: skip
ROWS = [
    {},
    {"n": 0, "m": 0, "l": 0, "small": 0, "d": 0.0, "f": 0.0, "p": Decimal("0.00"), "s": "", "t": "", "b": False,
     "day": date(1970, 1, 1), "at": datetime(1970, 1, 1, tzinfo=UTC), "a b": 0, "xs": []},
    {"n": 1, "m": 2, "l": 1, "small": 1, "d": 0.1, "f": 0.1, "p": Decimal("0.10"), "s": "a", "t": "b", "b": True,
     "day": date(2026, 1, 31), "at": AT, "a b": 5, "xs": [1]},
    {"n": -1, "m": -2, "l": -1, "small": -1, "d": -0.0, "f": -0.0, "p": Decimal("-0.01"), "s": "ab%", "t": "ab%",
     "b": True, "day": date(2026, 2, 1), "at": datetime(9999, 12, 31, tzinfo=UTC), "a b": -5},
    {"n": INT, "m": 1, "l": LONG, "small": 32767, "d": math.inf, "f": math.inf, "p": Decimal("99999999.99"),
     "s": "A", "t": "a", "b": False, "day": date(9999, 12, 31), "at": datetime(1, 1, 1, tzinfo=UTC)},
    {"n": -INT - 1, "m": INT, "l": -LONG - 1, "small": -32768, "d": math.nan, "f": math.nan, "p": Decimal("7.00"),
     "s": "ä\U0001f600", "t": "z", "b": None},
    {"n": 7, "l": 16_777_217, "d": 16_777_217.0, "f": 16_777_216.0, "s": "a\nb", "t": "a_b", "m": 7},
]  # fmt: skip
TRUE_OR_NOT = [
    "n > 0", "n >= 0", "n < 1", "n <= -1", "n = 1", "n == 1", "n <> 1", "n != 1", "n <=> 1", "n <=> m", "N > 0",
    "`n` > 0",
    "`a b` > 0", "n > m", "n = l", "small < n", "n > -2147483648", "n < 2147483648", "l = 9223372036854775807",
    "n > 0.5", "l > 0.5", "p > 0", "p > 0.05", "p = 0.1", "p >= n", "p < l", "n > .5", "n < 5.",
    "d > 0", "d >= 0.1", "d = 0.1", "d = 0", "d > 1e3", "d < n", "d = l", "d = f", "f = 0.1", "f > 0", "f = 16777216",
    "d = d", "f = f", "d > 1000", "NOT d > 1000", "d <=> d", "f < 1e0",
    "s = 'a'", "s < 'b'", "s <> t", "s = t", "s >= ''", "s <=> t", "s LIKE 'a%'", "s like '%b_'", "s LIKE 'a_b'",
    "s NOT LIKE '%'", "s LIKE ''", "t LIKE 'a.b'", "s LIKE '__'", "s in ('a', 'b')", "s not in ('a')",
    "length(s) = 1", "char_length(s) > 1", "character_length(s) <> 2", "LENGTH(s) BETWEEN 1 AND 2",
    "b", "NOT b", "b = true", "b <> false", "b IS TRUE", "b IS NOT TRUE", "b is false", "b IS NOT FALSE",
    "true", "1 = 1",
    "n IS NULL", "n IS NOT NULL", "xs IS NULL", "xs is not null", "(n > 0) IS NULL", "s is null or length(s) > 0",
    "n in (1, 7)", "n NOT IN (1, 7)", "n in (1, 2147483648)", "n in (0.5, 1)", "n between 0 and 5",
    "d in (1, 2.5)", "d in (1, 2.5e0)", "l in (1e0, 7.5e0)", "n NOT BETWEEN m AND 1",
    "n between 1 and 0", "day > DATE '2026-01-01'", "day = '2026-01-31'",
    "day BETWEEN '1970-01-01' AND date'2026-01-31'",
    "at > TIMESTAMP '2026-01-31T12:00:00Z'", "at = timestamp '2026-01-31 13:00:00.000001+01:00'", "at < at",
    "n > 0 AND m > 0", "n > 0 OR m > 0", "n > 0 or m > 1 and s = 'a'", "not n > 0 and m > 0", "not (n > 0 or m > 0)",
    "n > 0 AND b", "b OR n IS NULL", "d + 1 > 1", "d * n > 0", "d - f >= 0", "d * 0.5 > 0", "-d <= 0", "- 5 < n",
]  # fmt: skip
"""Conditions that mean the same here and in Spark, for each of ROWS."""
RAISES = {
    "n + 1 > 0": [4], "-n < 0": [5], "n + l > 0": [4, 5], "small + small > 0": [4, 5], "n < 0 or n + 1 > 0": [4],
    "n between 0 and n + 1": [4], "n + 1 is not null": [4],
}  # fmt: skip
"""Conditions for which Spark raises an error in these rows."""


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    return pl.DataFrame(
        pa.Table.from_pylist(
            [{"i": n, **row} for n, row in enumerate(ROWS)], SCHEMA.insert(0, pa.field("i", pa.int32()))
        )
    )


@pytest.fixture(scope="module")
def columns(rows, tmp_path_factory) -> tuple[tuple[str, str], ...]:
    path = tmp_path_factory.mktemp("types")
    write_deltalake(path, rows.to_arrow().slice(0, 0))
    fields = json.loads(DeltaTable(path).schema().to_json())["fields"]
    return tuple((field["name"], str(field["type"])) for field in fields)


def test_a_condition_is_met_by_the_rows_for_which_spark_says_true(spark, rows, columns, tmp_path):
    write_deltalake(tmp_path / "t", rows.to_arrow())
    read = f"delta.`{tmp_path}/t`"
    ours, theirs = {}, {}
    for text in TRUE_OR_NOT:
        why = violations(rows, [Constraint("constraint", "x", text, columns)])
        ours[text] = why.is_null().arg_true().to_list()
    met = [f"{text} AS c{n}" for n, text in enumerate(TRUE_OR_NOT)]
    for row in spark.sql(f"SELECT i, {', '.join(met)} FROM {read}").collect():
        for n, text in enumerate(TRUE_OR_NOT):
            theirs.setdefault(text, []).extend([row.i] if row[f"c{n}"] else [])
    assert {text: sorted(met_by) for text, met_by in theirs.items()} == ours


def test_a_row_for_which_spark_raises_an_error_is_refused(spark, rows, columns, tmp_path):
    """A sum beyond its type ends a write of Spark; here it refuses the one row."""
    write_deltalake(tmp_path / "t", rows.to_arrow())
    read = f"FROM delta.`{tmp_path}/t` WHERE i"
    met_by: dict[str, list[int]] = {text: [] for text in RAISES}
    for where in ("< 4", "= 4", "= 5", "> 5"):
        sound = [text for text, raising in RAISES.items() if where not in {f"= {n}" for n in raising}]
        for row in spark.sql(f"SELECT i, {', '.join(f'({text})' for text in sound)} {read} {where}").collect():
            for text, met in zip(sound, row[1:], strict=True):
                met_by[text] += [row.i] if met else []
    for text, raising in RAISES.items():
        for n in raising:
            with pytest.raises(ArithmeticException):
                spark.sql(f"SELECT ({text}) {read} = {n}").collect()
    for text, met in met_by.items():
        why = violations(rows, [Constraint("constraint", "x", text, columns)])
        assert why.is_null().arg_true().to_list() == sorted(met), text


def test_delta_refuses_a_row_for_which_a_check_is_null(spark, tmp_path):
    table = f"delta.`{tmp_path}/t`"
    spark.sql(f"CREATE TABLE {table} (n INT, k STRING NOT NULL) USING delta")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (n > 0)")
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a')")
    refused = [(-1, "b"), (None, "c"), (2, None)]
    for n, k in refused:
        with pytest.raises(Exception, match=r"DELTA_VIOLATE_CONSTRAINT|DELTA_NOT_NULL_CONSTRAINT_VIOLATED"):
            spark.createDataFrame([(n, k)], "n int, k string").write.format("delta").mode("append").save(
                f"{tmp_path}/t"
            )
    constraints = Requirements.of(tmp_path / "t", DeltaTable(tmp_path / "t")).constraints
    why = violations(
        pl.DataFrame([(1, "a"), *refused], schema={"n": pl.Int32(), "k": pl.String()}, orient="row"), constraints
    )
    assert why.to_list() == [
        None,
        "constraint positive (n > 0) refuses n = -1",
        "constraint positive (n > 0) refuses n = null",
        "column k (`k` IS NOT NULL) refuses k = null",
    ]
