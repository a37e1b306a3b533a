"""`tidemark check` warns of aggregates whose sink appends a row per record."""

from __future__ import annotations

import tomllib

import pytest

from tidemark.model.row_per_record import row_per_record
from tidemark.model.topology import parse

TOPOLOGY = """
name = "play"
[operators.readings]
kind = "source"
topic = "readings"
fields = "sensor string, temp_c double, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.stats]
kind = "aggregate"
input = "readings"
key = ["sensor"]
aggregates = {{ n = "count(*)", mean = "avg(temp_c)", warmest = "max(temp_c)" }}
{aggregate}
[operators.named]
kind = "map"
input = "stats"
select = {select}
[operators.board]
kind = "sink"
input = "named"
table = "board"
{sink}
"""
ALL = '{ device = "sensor", n = "n", warmest = "warmest" }'
WINDOWS = 'window = { tumbling = "1 min" }'


def warnings(aggregate: str = "", sink: str = "", select: str = ALL) -> list[tuple[str, str]]:
    text = TOPOLOGY.format(aggregate=aggregate, sink=sink, select=select)
    return list(row_per_record(parse(tomllib.loads(text), file="play.toml")))


def test_a_rolling_count_names_periodic_and_current() -> None:
    assert warnings() == [
        ("stats", 'n = "count(*)" changes with every record, and "on_change" emits each change, and the sink board '
         'appends a row for each; to write fewer rows, set in [operators.stats] strategy = "periodic" and interval '
         '= "1 min" (one row per key and minute), or in [operators.board] mode = "current" and key = ["device"] '
         "(the newest row of each key)")
    ]  # fmt: skip


def test_a_windowed_count_names_window_close_and_its_key() -> None:
    select = '{ sensor = "sensor", opened = "window_start", n = "n" }'
    ((name, text),) = warnings(WINDOWS, select=select)
    assert name == "stats"
    assert 'set in [operators.stats] strategy = "on_window_close" (one row per window), or in' in text
    assert 'mode = "current" and key = ["sensor", "opened"]' in text


def test_a_mean_changes_with_nearly_every_record() -> None:
    ((_, text),) = warnings(select='{ sensor = "sensor", mean = "mean" }', aggregate='select = { mean = "mean" }')
    assert text.startswith('mean = "avg(temp_c)" changes with nearly every record')


@pytest.mark.parametrize(
    ("aggregate", "sink", "select"),
    [
        (f'{WINDOWS}\nstrategy = "on_window_close"', "", ALL),
        ('strategy = "periodic"\ninterval = "1 min"', "", ALL),
        ("", 'mode = "current"\nkey = ["device"]', ALL),
        ('decide = "batch"', "", ALL),
        ('select = { warmest = "warmest" }', "", '{ device = "sensor", warmest = "warmest" }'),
        ("select = { many = \"case when n > 3 then 'many' else 'few' end\" }", "", '{ s = "sensor", many = "many" }'),
    ],
)
def test_usual_choices_and_rare_changes_are_not_warned_of(aggregate: str, sink: str, select: str) -> None:
    assert warnings(aggregate, sink, select) == []


def test_on_update_is_a_row_per_record_whatever_it_selects() -> None:
    ((_, text),) = warnings('strategy = "on_update"\nselect = { warmest = "warmest" }', select='{ w = "warmest" }')
    assert text.startswith('strategy = "on_update" emits a result for every record')
