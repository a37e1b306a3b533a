"""The kernels of the operators, on frames written by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest

from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import META_SCHEMA
from tidemark.kernels.sql.expressions import Expressions
from tidemark.kernels.updates.emission import STORED, judged
from tidemark.kernels.updates.steps import (
    hop_rows,
    join_valid,
    map_records,
    pruned,
    repartition_updates,
    table_updates,
    with_old_value,
)
from tidemark.model.kinds.join import Join
from tidemark.model.kinds.map import Map
from tidemark.model.kinds.repartition import Repartition
from tidemark.model.kinds.table import KeyedTable
from tidemark.model.settings.emission import ON_CHANGE
from tidemark.model.settings.window_columns import START, selected_bounds
from tidemark.semantics.change import Rule

NOTHING_STORED = pl.DataFrame(schema=dict(STORED))
BY_CARRIER = Repartition(
    name="by_carrier",
    id=("flight",),
    key=("carrier", "origin"),
    columns=("delay_min",),
    partitions=2,
    emission=ON_CHANGE,
)


def records(schema: dict[str, pl.DataType], *rows: tuple[Any, ...]) -> pl.DataFrame:
    """Returns payload columns, then record time; offsets count from 0.

    All rows are in partition 0.
    """
    meta = (0, False, None)
    full = [(*row[:-1], None, row[-1], 0, offset, *meta, row[-1], False, None) for offset, row in enumerate(rows)]
    return pl.DataFrame(full, schema={**schema, **META_SCHEMA}, orient="row")


def flights(*rows: tuple[Any, ...]) -> pl.DataFrame:
    kinds = {"flight": pl.String(), "carrier": pl.String(), "origin": pl.String(), "delay_min": pl.Float64()}
    return records(kinds, *rows)


def sent_on(updates: pl.DataFrame) -> pl.DataFrame:
    emitted = judged(updates, NOTHING_STORED, BY_CARRIER.emission.rule).emitted
    return hop_rows(BY_CARRIER, with_old_value(emitted, NOTHING_STORED))


def test_a_map_names_its_columns_and_filters_by_its_condition():
    operator = Map(name="m", select={"who": "upper(carrier)"}, where="delay_min > 10")
    out = map_records(
        operator, flights(("f1", "ua", "EWR", 5.0, 1), ("f2", "aa", "JFK", 15.0, 2)), Expressions(), updates=False
    )
    assert out.select("who", "_timestamp_ms", "_offset").rows() == [("AA", 2, 1)]


def test_a_misfitting_expression_is_refused_with_its_column():
    operator = Map(name="m", select={"who": "carier"}, where=None)
    with pytest.raises(InvalidArgument, match="carier"):
        map_records(operator, flights(), Expressions(), updates=False)


def test_an_expression_reads_no_file():
    operator = Map(name="m", select={"x": "(select count(*) from read_text('/etc/hostname'))"}, where=None)
    with pytest.raises(InvalidArgument):
        map_records(operator, flights(), Expressions(), updates=False)


def test_a_map_hands_on_a_column_however_its_sql_is_written():
    operator = Map(name="m", select={"who": '"Carrier"', "start": "(window_start)", "x": "delay_min + 1"}, where=None)
    assert operator.ordered_by(frozenset({"carrier", "delay_min"})) == {"who"}
    assert operator.renamed({"first": "carrier", "second": "delay_min"}) == {"first": "who"}
    assert selected_bounds(operator.select, {"window_start": START}) == {"start": START}


def test_a_table_sends_on_what_changed_and_says_how_much_did_not():
    operator = KeyedTable(name="t", key=("flight",), columns=("delay_min",))
    updates = table_updates(
        operator,
        flights(
            ("f1", "UA", "EWR", 5.0, 10), ("f1", "UA", "EWR", 5.0, 11), ("f1", "UA", "EWR", 5.0, 12),
            ("f1", "UA", "EWR", 7.0, 13), ("f1", "UA", "EWR", 5.0, 14),
        ),
        operator.columns,
    )  # fmt: skip
    result = judged(updates, NOTHING_STORED, Rule.STRICTLY_NEWER)
    emitted = with_old_value(result.emitted, NOTHING_STORED)
    emitted = emitted.select("_value", "_timestamp_ms", "_old_value", "_old_timestamp_ms").rows()
    assert emitted == [
        ('{"delay_min":5.0}', 10, None, None),
        ('{"delay_min":7.0}', 13, '{"delay_min":5.0}', 10),
        ('{"delay_min":5.0}', 14, '{"delay_min":7.0}', 13),
    ]
    runs = result.suppressed.select("_key", "n", "first_offset", "last_offset", "max_timestamp").rows()
    assert runs == [("f1", 2, 1, 2, 12)]
    assert result.suppressed_n == 2
    assert result.stored.select("key", "value", "timestamp_ms").rows() == [("f1", '{"delay_min":5.0}', 14)]


def test_minus_zero_is_the_same_value_as_zero():
    operator = KeyedTable(name="t", key=("flight",), columns=("delay_min",))
    updates = table_updates(
        operator, flights(("f1", "UA", "EWR", 0.0, 1), ("f1", "UA", "EWR", -0.0, 2)), operator.columns
    )
    assert judged(updates, NOTHING_STORED, Rule.VALUE_ONLY).emitted.height == 1


def test_values_that_json_cannot_tell_apart_are_told_apart():
    kinds = {"flight": pl.String(), "delays": pl.List(pl.Float64())}
    operator = KeyedTable(name="t", key=("flight",), columns=("delays",))
    found = records(kinds, ("f1", [None], 1), ("f1", [math.nan], 2), ("f1", [math.nan], 3))
    updates = table_updates(operator, found, operator.columns)
    assert judged(updates, NOTHING_STORED, Rule.VALUE_ONLY).emitted["_timestamp_ms"].to_list() == [1, 2]


def test_a_join_uses_the_version_valid_at_the_records_time():
    operator = Join(name="j", table="weather", on={"origin": "airport"})
    versions = pl.DataFrame(
        [("EWR", 60.0, 100, True), ("EWR", 70.0, 200, True), ("EWR", 71.0, 200, True), ("JFK", 50.0, 0, True)],
        schema={"airport": pl.String(), "temp_f": pl.Float64(), "_valid_from_ms": pl.Int64(), "_matched": pl.Boolean()},
        orient="row",
    )
    left = flights(
        ("f1", "UA", "EWR", 1.0, 250), ("f2", "UA", "EWR", 1.0, 199), ("f3", "UA", "EWR", 1.0, 99),
        ("f4", "UA", "LGA", 1.0, 250), ("f5", "UA", "EWR", 1.0, 200),
    )  # fmt: skip
    out = join_valid(operator, left, versions, updates=False)
    assert out.select("flight", "temp_f").rows() == [
        ("f1", 71.0), ("f2", 60.0), ("f3", None), ("f4", None), ("f5", 71.0),
    ]  # fmt: skip


def test_versions_that_no_later_record_asks_for_are_dropped():
    versions = pl.DataFrame(
        [("EWR", 60.0, 100), ("EWR", 70.0, 200), ("EWR", 80.0, 300), ("JFK", 50.0, 0)],
        schema={"airport": pl.String(), "temp_f": pl.Float64(), "_valid_from_ms": pl.Int64()},
        orient="row",
    )
    kept = pruned(versions, ("airport",), before_ms=250)
    assert sorted(kept["_valid_from_ms"]) == [0, 200, 300]


def test_a_repartition_sends_the_new_value_with_the_old_one():
    updates = repartition_updates(BY_CARRIER, flights(("f1", "UA", "EWR", 5.0, 10), ("f1", "UA", "EWR", 9.0, 20)))
    rows = sent_on(updates)
    values = [(row["seq"], row["old_value"], json.loads(row["value"])["delay_min"]) for row in rows.to_dicts()]
    assert values[0] == (0, None, 5.0)
    assert values[1][0] == 1
    assert json.loads(values[1][1]) == {"carrier": "UA", "origin": "EWR", "delay_min": 5.0}
    assert values[1][2] == 9.0


def test_an_update_that_moves_leaves_its_old_group():
    updates = repartition_updates(BY_CARRIER, flights(("f1", "UA", "EWR", 5.0, 10), ("f1", "AA", "EWR", 5.0, 20)))
    rows = sent_on(updates)
    ua, aa = '{"carrier":"UA","origin":"EWR"}', '{"carrier":"AA","origin":"EWR"}'
    assert [(r["key"], r["old_value"] is None, r["value"] is None) for r in rows.to_dicts()] == [
        (ua, True, False), (ua, False, True), (aa, True, False),
    ]  # fmt: skip


def test_a_deleted_record_retracts_its_value_from_its_group():
    stored = pl.DataFrame(
        [("f1", '{"carrier":"UA","origin":"EWR","delay_min":5.0}', "x", 10)], schema=dict(STORED), orient="row"
    )
    gone = flights(("f1", None, None, None, 30)).with_columns(_deleted=pl.lit(value=True))
    emitted = judged(repartition_updates(BY_CARRIER, gone), stored, Rule.STRICTLY_NEWER).emitted
    (row,) = hop_rows(BY_CARRIER, with_old_value(emitted, stored)).to_dicts()
    assert (row["key"], row["value"]) == ('{"carrier":"UA","origin":"EWR"}', None)
    assert json.loads(row["old_value"])["delay_min"] == 5.0


def test_a_map_deletes_from_a_table_what_its_condition_drops():
    operator = Map(name="m", select={"flight": "flight"}, where="delay_min > 10")
    three = flights(("f1", None, None, None, 1), ("f2", "UA", "EWR", 5.0, 2), ("f3", "UA", "EWR", 15.0, 3))
    three = three.with_columns(_deleted=pl.Series([True, False, False]))
    stream = map_records(operator, three, Expressions(), updates=False)
    assert stream.select("flight", "_deleted").rows() == [("f1", True), ("f3", False)]
    table = map_records(operator, three, Expressions(), updates=True)
    assert table.select("flight", "_deleted").rows() == [("f1", True), ("f2", True), ("f3", False)]
