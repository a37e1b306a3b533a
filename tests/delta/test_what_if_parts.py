"""Effects on stored ages of another bound or trigger, of a quicker source, and of an owner that is as usual."""

import pytest

from support.report_warehouse import WINDOW_MS, reading
from tidemark.account.warehouse import AccountTables
from tidemark.errors import InvalidArgument
from tidemark.model.tables.catalog import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.query.sql import Warehouse
from tidemark.reports.what_if.estimates import WorkChange
from tidemark.reports.what_if.parts import PartChange, what_if_part

TOPOLOGY = reading({"A": (), "B": ("A",)})


def told(warehouse, change):
    tables = Warehouse(warehouse.layout.warehouse)
    return what_if_part(tables, AccountTables(warehouse.layout, TOPOLOGY, tables.stored), change)


@pytest.mark.parametrize(
    ("change", "then_ms"),
    [
        (PartChange(owner="bound", length_ms=500), 1_700),
        (PartChange(owner="trigger", length_ms=2_000), 4_800),
        (PartChange(owner="operator", detail="B"), 4_000),
        (PartChange(owner="operator"), 3_960),
        (WorkChange(operator="A", scale=0.5), 4_150),
        (WorkChange(operator="A", less_ms=40), 4_160),
        (WorkChange(operator="A", less_ms=400), 4_100),
    ],
)
def test_a_bound_a_trigger_a_source_or_an_owner_changes_its_part_of_the_age(warehouse, change, then_ms):
    of = {"topology": "t", "window_start": 0, "window_end": WINDOW_MS}
    warehouse.write(CRITICAL_PATHS, [{**of, "leaf": "B", "latency_ms": 500, "before_source_ms": 3_700}])
    spent = {
        ("bound", "A"): (3_000, 3_000),
        ("trigger", ""): (600, 500),
        ("operator", "A"): (100, 60),
        ("operator", "B"): (500, 300),
    }
    parts = [
        {**of, "owner": owner, "detail": detail, "stream": "t/s", "ms": ms, "usual_ms": usual_ms}
        for (owner, detail), (ms, usual_ms) in spent.items()
    ]
    warehouse.write(WINDOW_PARTS, parts)

    found = told(warehouse, change)

    assert (found["compared"], found["before"]["median_ms"], found["after"]["median_ms"]) == (1, 4_200, then_ms)


@pytest.mark.parametrize(
    ("usual_ms", "change", "said"),
    [
        (None, PartChange(owner="operator", detail="B"), "what is usual of operator:B is not known: reports have seen"),
        (300, PartChange(owner="producer"), "producer has no time in these windows; `tidemark path t` lists"),
    ],
)
def test_an_owner_without_time_or_history_is_no_estimate(warehouse, usual_ms, change, said):
    of = {"topology": "t", "window_start": 0, "window_end": WINDOW_MS}
    part = {**of, "owner": "operator", "detail": "B", "ms": 500, "usual_ms": usual_ms}
    warehouse.write(WINDOW_PARTS, [part])
    with pytest.raises(InvalidArgument, match=said):
        told(warehouse, change)


def test_without_parts_there_is_nothing_to_compare(warehouse):
    warehouse.write(CRITICAL_PATHS, [])
    with pytest.raises(InvalidArgument, match="window_parts has none of t; run the DAG tidemark_t_reports"):
        told(warehouse, PartChange(owner="bound", length_ms=1))
