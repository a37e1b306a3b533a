"""Keys and values as text."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.kernels.columns.schemas import INSTANT
from tidemark.kernels.columns.values import key_text, key_value, parsed, partition_of, value_text


def text_of(values: list[float | None]) -> list[str]:
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.Float64)})
    return frame.select(value_text(("x",), frame.schema)).to_series().to_list()


def test_a_value_is_a_json_object_with_its_columns_in_order():
    frame = pl.DataFrame({"b": ['say "hi"\n'], "a": [3], "c": [True], "d": [None]}, schema_overrides={"d": pl.String})
    (text,) = frame.select(value_text(("a", "b", "c", "d"), frame.schema)).to_series()
    assert text == '{"a":3,"b":"say \\"hi\\"\\n","c":true,"d":null}'
    assert json.loads(text)["b"] == 'say "hi"\n'


BIGINTS = st.integers(-(2**63), 2**63 - 1)
VALUES = [
    (pl.String(), st.text() | st.text(st.characters(max_codepoint=0x1F))),
    (pl.Int64(), BIGINTS),
    (pl.Boolean(), st.booleans()),
    (INSTANT, st.datetimes(timezones=st.just(UTC))),
    (pl.Datetime("us"), st.datetimes()),
    (pl.Datetime("ms", "Asia/Tokyo"), st.integers(-(10**12), 10**13)),
    (pl.Date(), st.dates()),
    (pl.Time(), st.times()),
    (pl.Duration("us"), st.timedeltas(timedelta(-100_000), timedelta(100_000))),
    (pl.Decimal(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (pl.List(pl.String()), st.lists(st.none() | st.text(), max_size=3)),
    (pl.Struct({"n": pl.Int64(), 't"': pl.String()}), st.fixed_dictionaries({"n": BIGINTS, 't"': st.text()})),
]


@given(st.lists(st.tuples(*(st.none() | values for _, values in VALUES)), min_size=1, max_size=4))
def test_columns_have_the_same_text_together_and_beside_a_double(rows):
    """With a double in the object, each column is written by itself."""
    schema = {f"c{place}": kind for place, (kind, _) in enumerate(VALUES)}
    frame = pl.DataFrame(rows, schema=schema, orient="row").with_columns(x=0.5)
    together = frame.select(value_text([*schema], frame.schema)).to_series().to_list()
    beside = frame.select(value_text([*schema, "x"], frame.schema)).to_series().to_list()
    assert [text[:-1] + ',"x":0.5}' for text in together] == beside


def test_a_name_is_escaped():
    frame = pl.DataFrame({"größe": [1], 'a"b': [2]})
    assert frame.select(value_text(frame.columns, frame.schema)).item() == '{"gr\\u00f6\\u00dfe":1,"a\\"b":2}'


def test_floats_that_json_lacks_differ_from_null_and_each_other():
    assert text_of([math.nan, math.inf, -math.inf, None]) == [
        '{"x":"NaN"}',
        '{"x":"inf"}',
        '{"x":"-inf"}',
        '{"x":null}',
    ]


def test_minus_zero_is_written_as_zero():
    assert text_of([0.0, -0.0]) == ['{"x":0.0}', '{"x":0.0}']
    inside = pl.List(pl.Struct({"y": pl.Float32(), "z": pl.Int8()}))
    frame = pl.DataFrame({"x": [[{"y": -0.0, "z": 1}]]}, schema={"x": inside})
    assert frame.select(value_text(("x",), frame.schema)).item() == '{"x":[{"y":0.0,"z":1}]}'


@pytest.mark.parametrize("kind", [pl.Float32(), pl.Float64()])
def test_zeros_are_one_key_and_so_is_every_nan(kind):
    (other_nan,) = struct.unpack(">d", bytes.fromhex("fff8000000000001"))
    frame = pl.DataFrame({"k": [0.0, -0.0, math.nan, other_nan, -math.inf, None]}, schema={"k": kind})
    texts = frame.select(k=key_text(("k",), frame.schema))["k"]
    assert texts.to_list() == ["0.0", "0.0", "NaN", "NaN", "-inf", None]
    assert texts.to_frame().select(key_value("k", kind)).select(k=key_text(("k",), frame.schema))["k"].equals(texts)


@given(st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=20))
def test_a_float_reads_back_as_itself(values):
    frame = pl.DataFrame({"text": text_of(values)})
    read = frame.select(parsed("text", {"x": pl.Float64()}).struct.field("x")).to_series().to_list()
    for was, now in zip(values, read, strict=True):
        assert now == was or (was is not None and math.isnan(was) and now is not None and math.isnan(now))


@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=20))
def test_an_instant_reads_back_as_itself(values):
    frame = pl.DataFrame({"at": values}, schema={"at": INSTANT})
    read = frame.select(t=value_text(("at",), frame.schema)).select(parsed("t", frame.schema).struct.unnest())
    assert read.equals(frame)


def test_a_single_column_key_is_its_text_and_others_an_object():
    frame = pl.DataFrame({"carrier": ["UA", None], "origin": ["EWR", "JFK"]})
    assert frame.select(key_text(("carrier",), frame.schema)).to_series().to_list() == ["UA", None]
    both = frame.select(key_text(("carrier", "origin"), frame.schema)).to_series().to_list()
    assert both == ['{"carrier":"UA","origin":"EWR"}', '{"carrier":null,"origin":"JFK"}']


@pytest.mark.parametrize(("key", "crc32"), [("EWR", 0xF98F6D72), ("JFK", 0xC561A19F), ("LGA", 0x38220572)])
def test_a_key_goes_where_its_crc_32_says(key, crc32):
    assert partition_of(pl.Series([key]), 7).to_list() == [crc32 % 7]


AT = datetime(2020, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)
KEYS = [
    pl.Series("k", ["1", ""]),
    pl.Series("k", [True, False]),
    pl.Series("k", [-(2**63), 7]),
    pl.Series("k", [0.1, math.inf, 1e22]),
    pl.Series("k", [Decimal("1.50")]),
    pl.Series("k", [date(2020, 1, 1)]),
    pl.Series("k", [AT, AT.replace(microsecond=0)], dtype=pl.Datetime("us", "UTC")),
    pl.Series("k", [AT], dtype=pl.Datetime("ms", "UTC")),
    pl.Series("k", [AT.replace(tzinfo=None)], dtype=pl.Datetime("us")),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.dtype))
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_single_column_key_is_read_back_from_its_text(keys: pl.Series, rows: int) -> None:
    frame = keys.head(rows).to_frame()
    text = frame.select(text=key_text(("k",), frame.schema))
    assert text.select(k=key_value("text", keys.dtype))["k"].equals(frame["k"])
