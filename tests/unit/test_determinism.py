"""Non-deterministic SQL is refused with file, key, cause and remedy."""

from __future__ import annotations

import tomllib
from datetime import UTC, date, datetime

import polars as pl
import pytest

from support.topologies import source, topology_of
from tidemark.errors import InvalidSpec
from tidemark.kernels.columns.schemas import INSTANT
from tidemark.kernels.sql.expressions import Expressions
from tidemark.model.topology import parse
from tidemark.stream.operate.steps import Steps

SOURCE = topology_of(events=source("id string, v int, current_date string", max_ahead=None), x={"input": "events"})


@pytest.mark.parametrize(
    ("operator", "key", "uses"),
    [
        ('select = { v = "v" }\nkey = ["v"]\nstrategy = "on_change"\nidentity = "now()"', "identity", "now()"),
        ('select = { v = "v" }\nstrategy = "on_change"\nidentity = "v + RANDOM()"', "identity", "random()"),
        ('select = { v = "v" }\nwhere = "v > random()"', "where", "random()"),
        ('select = { u = "uuid()" }\n', "select.u", "uuid()"),
        ("select = { u = \"case when v > 1 then nextval('s') end\" }\n", "select.u", "nextval()"),
        ("select = { u = \"strftime(current_timestamp, '%Y')\" }\n", "select.u", "current_timestamp"),
        ('select = { u = "list_transform([v], x -> x + random())" }\n', "select.u", "random()"),
        ("select = { u = \"current_setting('TimeZone')\" }\n", "select.u", "current_setting()"),
        ('select = { u = "age(make_timestamp(event_time))" }\n', "select.u", "age()"),
        ('select = { u = "ago(interval 1 day)" }\n', "select.u", "ago(), which is current_timestamp"),
        ('select = { u = "current_localtimestamp()" }\n', "select.u", "current_localtimestamp()"),
        ('select = { u = "current_localtime()" }\n', "select.u", "current_localtime()"),
        ('select = { u = "sum(v)" }\n', "select.u", "sum()"),
        ('select = { u = "row_number() over ()" }\n', "select.u", "a window function"),
        ('select = { u = "(select max(v) from records)" }\n', "select.u", "a subquery"),
    ],
)
def test_what_depends_on_more_than_the_record_is_refused(operator, key, uses):
    topology = parse(tomllib.loads(f'{SOURCE}kind = "map"\n{operator}'), file="play.toml")
    with pytest.raises(InvalidSpec) as error:
        Steps(topology, lambda place: None)
    said = str(error.value)
    assert said.startswith(f"play.toml: operators.x.{key}: ")
    assert f"uses {uses}, which " in said
    assert said.endswith("; use the record's columns alone, and its timestamp in place of the clock")


def test_an_aggregates_select_is_looked_at_too():
    aggregate = 'kind = "aggregate"\nkey = ["id"]\naggregates = { n = "count(*)" }\nselect = { n = "n + random()" }'
    with pytest.raises(InvalidSpec, match=r"operators\.x\.select\.n: .* uses random\(\)"):
        Steps(parse(tomllib.loads(SOURCE + aggregate), file="play.toml"), lambda place: None)


@pytest.mark.parametrize(
    "sql",
    ["current_date", "age(make_timestamp(1), make_timestamp(2))", "list_sum([v, v])", "split_part(id, ',', 1)",
     "id::timestamptz", "md5(id)", "[x for x in [v] if x > 1]"],
)  # fmt: skip
def test_what_the_record_alone_tells_is_accepted(sql):
    Expressions().check(sql, {"id", "v", "current_date"})


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("date_trunc('hour', seen)", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("time_bucket(interval '15 minutes', seen)", datetime(2026, 1, 1, 12, 30, tzinfo=UTC)),
        ("seen - interval 1 minute", datetime(2026, 1, 1, 12, 29, 59, 1, tzinfo=UTC)),
        ("epoch_ms(seen)", 1_767_270_659_000),
        ("epoch_us(seen)", 1_767_270_659_000_001),
        ("seen::date", date(2026, 1, 1)),
        ("strftime(seen, '%Y-%m-%d %H')", "2026-01-01 12"),
        ("hour(seen)", 12),
        ("date_diff('microsecond', timestamptz '2026-01-01 12:30:59', seen)", 1),
        ("seen > timestamptz '2026-01-01 12:30:59' and seen <= '2026-01-01T13:30:59.000001+01:00'", True),
        ("seen::varchar", "2026-01-01 12:30:59.000001+00"),
    ],
)
def test_functions_of_a_timestamp_are_accepted_and_in_utc(monkeypatch, sql, expected):
    monkeypatch.setenv("TZ", "America/New_York")
    frame = pl.DataFrame({"seen": [datetime(2026, 1, 1, 12, 30, 59, 1, tzinfo=UTC)]}, schema={"seen": INSTANT})
    expressions = Expressions()
    expressions.check(sql, {"seen"})
    assert expressions.misfit(sql, frame.clear()) is None
    assert expressions.select(frame, {"v": sql}, keep=()).item() == expected


def test_a_text_without_a_zone_is_an_instant_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    frame = pl.DataFrame({"t": ["2026-07-01 12:00:00"]})
    found = Expressions().select(frame, {"ms": "epoch_ms(t::timestamptz)"}, keep=())
    assert found.item() == 1_782_907_200_000
