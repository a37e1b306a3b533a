import math
import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.identity import canonical, sha256

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns import identity as kernel

NOON = datetime(2024, 7, 1, 12, tzinfo=UTC)
EXAMPLES = [
    (None, b"n"),
    (True, b"t"),
    (False, b"f"),
    (-12, b"i-12;"),
    (1.0, b"d?\xf0\0\0\0\0\0\0"),
    (Decimal("-12.50"), b"c-125e-1;"),
    (Decimal("1E+3"), b"c1e3;"),
    ("né", b"s3:n\xc3\xa9"),
    (b"\0", b"b1:\0"),
    (date(1970, 1, 3), b"y2;"),
    (NOON, b"z1719835200000000;"),
    (datetime(1969, 12, 31, 23, 59, 59), b"l-1000000;"),  # noqa: DTZ001 - a timestamp without a zone is a case
    (timedelta(seconds=2), b"u2000000;"),
    ([1, None], b"a2:i1;n"),
    ((), b"a0:"),
    ({"b": 1, "a": [2]}, b"m2:s1:aa1:i2;s1:bi1;"),
]


@pytest.mark.parametrize(("value", "expected"), EXAMPLES, ids=[repr(value) for value, _ in EXAMPLES])
def test_each_type_has_its_bytes(value, expected):
    assert canonical(value) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (-0.0, 0.0),
        (math.nan, -math.nan),
        (Decimal("1.0"), Decimal("1.00")),
        (Decimal("-0.00"), Decimal(0)),
        ({"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}),
        (NOON, NOON.astimezone(timezone(timedelta(hours=-4)))),
        ((1, "a"), [1, "a"]),
    ],
)
def test_equal_values_are_equal_bytes(one, other):
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, ""),
        ("", ()),
        (["ab", "c"], ["a", "bc"]),
        ([["a"], "b"], [["a", "b"]]),
        ([None], []),
        ({"a": None}, {}),
        (0.1, 0.1 + 2**-55),
        (Decimal("0." + "1" * 38), Decimal("0." + "1" * 37 + "2")),
    ],
)
def test_different_values_are_different_bytes(one, other):
    assert canonical(one) != canonical(other)


@pytest.mark.parametrize("value", [object(), 1j, Decimal("NaN"), Decimal("Infinity"), [{1, 2}]])
def test_a_value_without_bytes_is_refused(value):
    with pytest.raises(InvalidArgument, match="cast it"):
        canonical(value)


def test_a_digest_is_sha256_of_the_bytes():
    assert sha256(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    digests = kernel.sha256(pa.array([b"abc", None])).to_pylist()
    assert digests == [sha256(b"abc"), None]


NUMBERS = st.none() | st.lists(st.none() | st.integers(0, 3), max_size=2)
TEXTS = st.none() | st.lists(st.sampled_from(["", "a"]), max_size=2)
COLUMNS = {
    "flag": (pa.bool_(), st.booleans()),
    "small": (pa.int8(), st.integers(-128, 127)),
    "big": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "real": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, math.nan])),
    "single": (pa.float32(), st.floats(width=32)),
    "price": (pa.decimal128(38, 10), st.decimals("-1e20", "1e20", places=10) | st.sampled_from([Decimal(0)])),
    "text": (pa.string(), st.text(max_size=4)),
    "octets": (pa.large_binary(), st.binary(max_size=4)),
    "day": (pa.date32(), st.dates(date(1, 1, 1))),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "length": (pa.duration("us"), st.timedeltas(timedelta(days=-9999), timedelta(days=9999))),
    "many": (pa.list_(pa.list_(pa.int64())), st.lists(NUMBERS, max_size=3)),
    "record": (
        pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))]),
        st.tuples(st.none() | st.sampled_from([0.0, -0.0]), TEXTS),
    ),
    "tags": (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(st.sampled_from(["", "a", "ab", "b"]), st.none() | st.integers(0, 2)),
    ),
}
ROWS = st.lists(st.tuples(*(st.none() | values for _, values in COLUMNS.values())), max_size=4)


def as_arrow(value):
    """Returns maps as entries and structs as fields, for Arrow."""
    return [*value.items()] if isinstance(value, dict) else value


def table(rows):
    columns = zip(*rows, strict=True) if rows else [[] for _ in COLUMNS]
    arrays = []
    for (name, (type_, _)), column in zip(COLUMNS.items(), columns, strict=True):
        values = [dict(zip("xy", v, strict=True)) if v and name == "record" else as_arrow(v) for v in column]
        arrays.append(pa.array(values, type_))
    return pa.table(arrays, names=[*COLUMNS])


@given(ROWS)
def test_columns_have_the_bytes_of_their_values(rows):
    assert kernel.canonical(table(rows)).to_pylist() == [canonical(row) for row in rows]


@given(ROWS)
def test_a_part_of_a_table_has_the_bytes_of_its_rows(rows):
    """Slices and chunks share buffers with what they were cut from."""
    whole = table(rows)
    cut = pa.concat_tables([whole.slice(1, 2), whole.slice(3)])
    assert kernel.canonical(cut).to_pylist() == [canonical(row) for row in rows[1:]]
    assert kernel.canonical(whole.slice(1, 2)).to_pylist() == [canonical(row) for row in rows[1:3]]


def test_text_of_any_layout_has_the_same_bytes():
    layouts = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
    for layout in layouts:
        column = pa.array(["a", None, "a"]).cast(layout)
        assert kernel.canonical(pa.table({"c": column})).to_pylist() == [b"a1:s1:a", b"a1:n", b"a1:s1:a"]


def test_no_columns_have_the_bytes_of_an_empty_struct():
    assert kernel.canonical(pl.DataFrame(height=2).to_arrow()).to_pylist() == [b"a0:", b"a0:"]
    assert kernel.canonical(pa.table({"c": pa.nulls(1)})).to_pylist() == [b"a1:n"]


@pytest.mark.parametrize("type_", [pa.time64("us"), pa.timestamp("ns"), pa.duration("ns")])
def test_a_column_without_bytes_is_refused(type_):
    with pytest.raises(InvalidArgument, match="cast it"):
        kernel.canonical(pa.table({"c": pa.array([None], type_)}))


def test_rows_cost_a_fifth_of_one_after_the_other():
    row = pl.int_range(100_000)
    frame = pl.select(a=row, b=row.cast(pl.String), c=row / 7, d=row % 2 == 0, e=pl.lit("on time"))
    few = frame.head(5_000).to_dicts()

    def seconds(call):
        started = time.process_time()
        call()
        return time.process_time() - started

    at_once_s = min(seconds(lambda: kernel.canonical(frame.to_arrow())) for _ in range(3)) / frame.height
    assert at_once_s < min(seconds(lambda: [canonical(each) for each in few]) for _ in range(3)) / len(few) / 5
