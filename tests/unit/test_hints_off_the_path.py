"""Hints name operators off the path that occupy a driver."""

import polars as pl
import pytest

from support.report_warehouse import reading
from tidemark.reports.what_if.estimates import hints

TOPOLOGY = reading({"src": (), "path": ("src",), "busy": ("src",), "idle": ("src",)})


def test_hints_list_operators_off_the_path_that_occupy_a_driver():
    worked = {"src": (0, 10), "path": (1, 100), "busy": (None, 300), "idle": (None, 5)}
    rows = [
        {"operator": name, "sub_topology": "s", "step": step, "worked_ms": ms} for name, (step, ms) in worked.items()
    ]
    found = {hint.operator: hint for hint in hints(pl.DataFrame(5 * rows), TOPOLOGY, {})}
    assert [*found] == ["path", "src", "busy"]
    assert found["busy"].worked_share == pytest.approx(300 / 415)
    assert found["busy"].reasons[0].startswith("off the path: 72% of the work of the driver s")
    assert [hint.operator for hint in hints(pl.DataFrame(4 * rows), TOPOLOGY, {})] == ["path", "src"]


def test_an_operator_occupies_no_driver_that_worked_0_ms():
    steps: list[tuple[str, int | None]] = [("src", 0), ("path", 1), ("busy", None)]
    rows = [{"operator": name, "sub_topology": "s", "step": step, "worked_ms": 0} for name, step in steps]
    assert [hint.operator for hint in hints(pl.DataFrame(5 * rows), TOPOLOGY, {})] == ["path", "src"]
