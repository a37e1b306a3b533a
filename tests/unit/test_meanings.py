"""Topology changes that a stream can continue with.

docs/operations.md lists them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from support.topologies import aggregate, map_of, operators, sink, source, table, topology_of
from tidemark.control.folder import Control
from tidemark.model.topology import parse
from tidemark.stream.startup.state_compatibility import changed, meanings

TOML = topology_of(
    {"name": "shop", "level": "info"},
    orders=source(
        topic="orders",
        fields="id string, region string, amount int, ordered_at bigint",
        timestamp="ordered_at",
        max_ahead=None,
    ),
    priced=map_of("orders", select={"id": "id", "region": "region", "amount": "amount * 2"}),
    newest=table("priced", columns=["amount"]),
    board=sink("newest", table="board", mode="current", key=["id"]),
    totals=aggregate(
        "priced",
        key=["region"],
        window={"tumbling": "1 min"},
        aggregates={"total": "sum(amount)", "n": "count(*)"},
        select={"total": "total", "n": "n"},
    ),
    sums=sink("totals", table="sums"),
)


def after(old: str, new: str) -> list[str]:
    """Returns changes of meaning when *new* replaces *old* in the file."""
    assert old in TOML
    before, now = (parse(tomllib.loads(text), file="shop.toml") for text in (TOML, TOML.replace(old, new)))
    return [str(each) for each in changed(meanings(before.sub_topologies[0]), meanings(now.sub_topologies[0]))]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("amount * 2", "amount * 3"),
        ('level = "info"', 'level = "debug"'),
        ('bound = "1 s"', 'bound = "9 s"\nmax_records = 5'),
        ("amount int,", "amount int, note string,"),
        ('columns = ["amount"]', 'columns = ["amount", "region"]'),
        ('table = "sums"', 'table = "sums_again"'),
        ("operators.sums", "operators.sums_again"),
        ('n = "count(*)" }', 'n = "count(*)", most = "max(amount)" }'),
        (', n = "count(*)" }\nselect = { total = "total", n = "n" }', ' }\nselect = { total = "total" }'),
        (operators(sums=sink("totals", table="sums")), ""),
    ],
)
def test_a_stream_goes_on_when_what_it_keeps_means_the_same(old: str, new: str) -> None:
    assert after(old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("sum(amount)", "max(amount)", "operators.totals.aggregates.total: was sum(amount), is max(amount)"),
        (
            'key = ["region"]',
            'key = ["id"]',
            "operators.totals: was an aggregate by region over tumbling windows of 1 min, "
            "is an aggregate by id over tumbling windows of 1 min",
        ),
        (
            "1 min",
            "2 min",
            "operators.totals: was an aggregate by region over tumbling windows of 1 min, "
            "is an aggregate by region over tumbling windows of 2 min",
        ),
        (
            'key = ["id"]\ncolumns = ["amount"]',
            'key = ["id", "region"]\ncolumns = ["amount"]',
            "operators.newest: was a table by id, is a table by id, region",
        ),
        (
            'mode = "current"\nkey = ["id"]',
            'mode = "append"',
            "the table board: was the current row of id, is every row",
        ),
    ],
)
def test_a_stream_does_not_go_on_when_it_means_something_else(old: str, new: str, told: str) -> None:
    assert after(old, new) == [told]


def test_a_removed_operators_meaning_is_kept_for_its_return(tmp_path: Path) -> None:
    control = Control(tmp_path)
    assert control.meanings() == {}
    control.keep_meanings({"operators.totals": "a sum"})
    control.keep_meanings({"operators.newest": "a table"})
    (found,) = changed(control.meanings(), {"operators.totals": "a maximum"})
    assert (str(found), found.operator) == ("operators.totals: was a sum, is a maximum", "totals")
