"""Errors visible only in columns are refused before a driver starts.

The message has file, operator, the value and the alternatives.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import polars as pl
import pytest

from support.topologies import sink, source, topology_of
from tidemark.errors import InvalidSpec
from tidemark.model.topology import parse
from tidemark.stream.operate.steps import Steps

SOURCE = topology_of(events=source("id string, v int, timestamp int", max_ahead=None), x={"input": "events"})


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ('kind = "map"\nselect = { a = "w + 1" }', r'Referenced column "w" not found'),
        ('kind = "map"\nselect = { a = "v + " }', "syntax error"),
        ('kind = "map"\nselect = { a = "v" }\nwhere = "id > 3 and"', "syntax error"),
        ('kind = "table"\nkey = ["ident"]', "ident"),
        ('kind = "table"\nkey = ["id"]\ncolumns = ["w"]', "w"),
        (
            'kind = "aggregate"\nkey = ["id"]\naggregates = { s = "sum(id)" }',
            "s is of id, a String, and needs a number",
        ),
        ('kind = "aggregate"\nkey = ["w"]\naggregates = { n = "count(*)" }', "w"),
        ('kind = "aggregate"\nkey = ["id"]\naggregates = { n = "count(w)" }', "there is no column w"),
        ('kind = "aggregate"\nkey = ["id"]\naggregates = { id = "count(*)" }', "is already a column of the result"),
        ('kind = "sink"\ntable = "out"\nmode = "current"\nkey = ["w"]', r"names \['w'\], which are not columns"),
        ('kind = "sink"\ntable = "out"', r"\['timestamp'\] are columns that a Delta sink adds"),
        ('kind = "join"\ndelta = "names"\non = { w = "id" }', r"names \['w'\], which are no columns of the record"),
        ('kind = "join"\ndelta = "names"\non = { id = "w" }', r"names \['w'\], .* of the row; it has id, v"),
        ('kind = "join"\ndelta = "names"\non = { id = "id" }', r"\['v'\] are columns of both sides"),
    ],
)
def test_a_missing_column_is_refused_with_the_existing_ones(operator: str, says: str) -> None:
    topology = parse(tomllib.loads(SOURCE + operator), file="play.toml")
    names = pl.DataFrame({"id": ["a"], "v": ["b"]})
    with pytest.raises(
        InvalidSpec,
        match=rf"(?s)^play\.toml: operators\.x[.a-z]*: .*{says}.*it reads the columns id, v, timestamp, event_time",
    ):
        Steps(topology, lambda place: names)


@pytest.mark.parametrize(
    ("operator", "key", "says"),
    [
        ('kind = "map"\nselect = { a = "v + " }', "select.a", "is 'v + ': syntax error at end of input"),
        ('kind = "map"\nselect = { a = "v) , (v" }', "select.a", "is 'v) , (v': syntax error at or near \")\""),
        ('kind = "map"\nselect = { a = "v, v" }', "select.a", "is 'v, v': it is not one expression"),
        ('kind = "map"\nselect = { a = "v --" }', "select.a", "is 'v --': it is not one expression"),
        ('kind = "map"\nselect = { a = "columns(*)" }', "select.a", "'columns(*)' uses *, which is no column"),
        ('kind = "map"\nselect = { a = "" }', "select.a", "is '': it is empty"),
        ('kind = "map"\nselect = { a = "v" }\nwhere = "id"', "where", "is 'id', which is not a condition; write one"),
        ('kind = "map"\nselect = { a = "records" }', "select.a", 'Referenced column "records" not found'),
        ('kind = "map"\nselect = { a = "v" }\nwhere = "_deleted"', "where", 'Referenced column "_deleted" not found'),
        ('kind = "map"\nselect = { a = "v" }\nwhere = "true) or (true"', "where", "syntax error"),
        (
            'kind = "map"\nselect = { a = "v" }\nstrategy = "on_change"\nidentity = "round(v)"',
            "identity",
            "is 'round(v)': Binder Error: Referenced column \"v\" not found; it reads the columns a",
        ),
        (
            'kind = "map"\nselect = { a = "v" }\nstrategy = "on_change"\nkey = ["v"]',
            "key",
            "names ['v'], which are not columns; it reads the columns a",
        ),
        ('kind = "table"\nkey = ["_key"]', "key", "names ['_key'], which are not columns"),
        ('kind = "table"\nkey = ["id"]\ncolumns = ["w", "v"]', "columns", "names ['w'], which are not columns"),
        ('kind = "aggregate"\nkey = ["w"]\naggregates = { n = "count(*)" }', "key", "names ['w']"),
        ('kind = "aggregate"\nkey = ["id"]\naggregates = { n = "sum(_offset)" }', "aggregates.n", "no column _offset"),
        (
            'kind = "aggregate"\nkey = ["id"]\naggregates = { n = "count(*)" }\nselect = { m = "n + v" }',
            "select.m",
            "is 'n + v': Binder Error: Referenced column \"v\" not found; it reads the columns id, n",
        ),
        ('kind = "join"\ndelta = "names"\non = { v = "id" }', "on", "does not fit what it reads: "),
        ('kind = "sink"\ntable = "out"\nmode = "current"\nkey = ["w"]', "key", "names ['w'], which are not columns"),
    ],
)
def test_a_misfit_names_its_key_and_no_column_of_tidemark(operator: str, key: str, says: str) -> None:
    said = refused(SOURCE + operator)
    assert said.startswith(f"play.toml: operators.x.{key}: ")
    assert says in said
    assert not any(word in said for word in ("_task", "_headers", "_old", "SELECT", "FROM"))


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ('id = ["w"]\nkey = ["id"]\ncolumns = ["v"]', "id"),
        ('id = ["id"]\nkey = ["w"]\ncolumns = ["v"]', "key"),
        ('key = ["id"]\ncolumns = ["w"]', "columns"),
    ],
)
def test_a_repartition_names_columns_that_are_there(keys: str, key: str) -> None:
    counts = '[operators.n]\nkind = "aggregate"\ninput = "x"\naggregates = { n = "count(*)" }'
    said = refused(f'{SOURCE}kind = "repartition"\n{keys}\n{counts}')
    assert said == (
        f"play.toml: operators.x.{key}: names ['w'], which are not columns; "
        "it reads the columns id, v, timestamp, event_time"
    )


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (
            'kind = "map"\nselect = { a = "seen / 1000" }',
            "select.a: is 'seen / 1000': Binder Error: No function matches the given name and argument types "
            "'/(TIMESTAMP WITH TIME ZONE, INTEGER_LITERAL)'. You might need to add explicit type casts.; "
            "it reads the columns id, v, timestamp, seen; of a timestamp epoch_ms(...) and epoch_us(...) are numbers",
        ),
        (
            'kind = "map"\nselect = { a = "seen" }\nwhere = "seen > 5"',
            "where: is 'seen > 5': Binder Error: Cannot compare values of type TIMESTAMP WITH TIME ZONE and type "
            "INTEGER_LITERAL - an explicit cast is required; it reads the columns id, v, timestamp, seen; "
            "of a timestamp epoch_ms(...) and epoch_us(...) are numbers",
        ),
        (
            'kind = "map"\nselect = { a = "seen - seen" }',
            "select.a: is 'seen - seen': a column cannot be an INTERVAL; write date_diff('microsecond', earlier, "
            "later), which is a number; it reads the columns id, v, timestamp, seen",
        ),
        (
            'kind = "map"\nselect = { a = "[encode(id)]" }',
            "select.a: is '[encode(id)]': a column cannot be a BLOB or BIT; write hex(x) or x::varchar, which is text; "
            "it reads the columns id, v, timestamp, seen",
        ),
        *(
            (
                f'kind = "aggregate"\nkey = ["id"]\naggregates = {{ s = "{call}(seen)" }}',
                "aggregates.s: s is of seen, a timestamp, and needs a number; use min, max, count, first or last; "
                "it reads the columns id, v, timestamp, seen",
            )
            for call in ("sum", "avg")
        ),
    ],
)
def test_a_timestamp_is_no_number(operator: str, says: str) -> None:
    source = SOURCE.replace("event_time bigint", "seen timestamp").replace('"event_time"', '"seen"')
    assert refused(source + operator) == f"play.toml: operators.x.{says}"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("n int from data.n, at timestamp from data.at", None),
        ("n decimal(12,2) from data.n, at timestamp from data.at", None),
        ("n string from data, at timestamp from data.at", None),
        ("n int from data.m, at timestamp from data.at", "the schema has no data.m; it has the fields data, data.at"),
        ("n int, at timestamp from data.at", "the schema has no n; it has the fields data, data.at"),
        ("n string from data.n, at bigint from data.at", "data.at is timestamp, not bigint"),
        ("n decimal(11,2) from data.n, at timestamp from data.at", "data.n is int, not decimal(11,2)"),
    ],
)
def test_a_field_that_the_schema_lacks_or_has_otherwise_is_refused(
    tmp_path: Path, fields: str, says: str | None
) -> None:
    at = {"type": "long", "logicalType": "timestamp-millis"}
    data = {"type": "record", "name": "Data", "fields": [{"name": "n", "type": "int"}, {"name": "at", "type": at}]}
    schema = {"type": "record", "name": "Reading", "fields": [{"name": "data", "type": ["null", data]}]}
    (tmp_path / "readings.avsc").write_text(json.dumps(schema))
    keys = {"fields": fields, "timestamp": "at", "format": "avro", "schema": "readings.avsc"}
    text = topology_of(events=source(**keys), out=sink("events", table="out"))
    topology = parse(tomllib.loads(text), file="play.toml", folder=tmp_path)
    if says is None:
        assert Steps(topology, lambda place: pl.DataFrame()).schemas
        return
    with pytest.raises(InvalidSpec) as error:
        Steps(topology, lambda place: pl.DataFrame())
    assert str(error.value).startswith(f"play.toml: operators.events.fields: {says}; ")


def refused(toml: str) -> str:
    topology = parse(tomllib.loads(toml), file="play.toml")
    names = pl.DataFrame({"id": ["a"], "name": ["b"]})
    with pytest.raises(InvalidSpec) as error:
        Steps(topology, lambda place: names)
    return str(error.value)
