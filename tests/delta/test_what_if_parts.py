"""Effects of another bound or trigger on stored ages."""

import pytest

from support.report_warehouse import WINDOW_MS, reading
from tidemark.errors import InvalidArgument
from tidemark.model.tables.catalog import CRITICAL_PATHS, WINDOW_PARTS
from tidemark.query.sql import Warehouse
from tidemark.reports.what_if.parts import PartChange, what_if_setting
from tidemark.semantics.blame import AgeCause

TOPOLOGY = reading({"A": (), "B": ("A",)})


@pytest.mark.parametrize(
    ("cause", "length_ms", "then_ms"), [(AgeCause.BOUND, 500, 1_600), (AgeCause.TRIGGER, 2_000, 4_700)]
)
def test_a_bound_or_a_trigger_changes_its_part_of_the_age(warehouse, cause, length_ms, then_ms):
    of = {"topology": "t", "window_start": 0, "window_end": WINDOW_MS}
    warehouse.write(CRITICAL_PATHS, [{**of, "leaf": "B", "latency_ms": 500, "before_source_ms": 3_600}])
    spent = {"bound": 3_000, "trigger": 600, "B": 500}
    parts = [{**of, "operator": name, "kind": name, "ms": ms} for name, ms in spent.items()]
    warehouse.write(WINDOW_PARTS, [{**part, "subject": "B", "age_ms": 4_100} for part in parts])

    told = what_if_setting(
        Warehouse(warehouse.layout.warehouse), TOPOLOGY, PartChange(cause=cause, length_ms=length_ms)
    )

    assert (told["compared"], told["before"]["median_ms"], told["after"]["median_ms"]) == (1, 4_100, then_ms)


def test_without_parts_there_is_nothing_to_compare(warehouse):
    warehouse.write(CRITICAL_PATHS, [])
    with pytest.raises(InvalidArgument, match="window_parts has none of t; run the DAG tidemark_t_reports"):
        what_if_setting(Warehouse(warehouse.layout.warehouse), TOPOLOGY, PartChange(cause=AgeCause.BOUND, length_ms=1))
