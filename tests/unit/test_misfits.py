"""What only the columns give away is refused before a driver starts: file, operator, what was seen, what there is."""

from __future__ import annotations

import tomllib

import polars as pl
import pytest

from tidemark.errors import InvalidSpec
from tidemark.spec.topology import parse
from tidemark.stream.steps import Steps

SOURCE = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v int, timestamp int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
[operators.x]
input = "events"
"""


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
        ('kind = "aggregate"\nkey = ["id"]\naggregates = { id = "count(*)" }', r"name \['id'\], which the result has"),
        ('kind = "sink"\ntable = "out"\nmode = "current"\nkey = ["w"]', r"key names \['w'\]"),
        ('kind = "sink"\ntable = "out"', r"\['timestamp'\] are columns that a Delta sink adds itself"),
        ('kind = "join"\ndelta = "names"\non = { w = "id" }', r"on names \['w'\], which are no columns of the record"),
        ('kind = "join"\ndelta = "names"\non = { id = "w" }', r"on names \['w'\], .* of the row; it has id, v"),
        ('kind = "join"\ndelta = "names"\non = { id = "id" }', r"\['v'\] are columns of both sides"),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_the_ones_that_are(operator: str, says: str) -> None:
    topology = parse(tomllib.loads(SOURCE + operator), file="play.toml")
    names = pl.DataFrame({"id": ["a"], "v": ["b"]})
    with pytest.raises(
        InvalidSpec,
        match=rf"(?s)^play\.toml: operators\.x[.a-z]*: .*{says}.*it reads the columns id, v, timestamp, event_time",
    ):
        Steps(topology, lambda place: names)
