"""The plan of a deployment follows from its formulas, and the page about growth from raw measurements."""

from __future__ import annotations

import re

import pytest
from bench.growth_page import BEGINS, CLUSTERS, ENDS, PAGE, Sample, exponent, read, table

COSTS, GROWTH = PAGE.with_name("performance.md").read_text(), PAGE.read_text()
NAMED = re.compile(r"^\| `(\w+)` \| ([\d.]+) \|", re.MULTILINE)
EXAMPLE = re.compile(r"^\| ([^|`]+) \| `([\w\s.+*/()-]+)` \| ([\d,.]+) \|$", re.MULTILINE)

OF_CLUSTERS = [
    ("CPU of the driver", 1_000_000, "6 * cpu_batch", 1, 1 / 3),
    ("CPU of the driver", 2_000_000, "11 * cpu_batch", 1, 1 / 3),
    ("CPU of the executors", 1_000_000, "1e6 * cpu_task", 1, 1 / 3),
    ("CPU of the executors", 2_000_000, "2e6 * cpu_task", 1, 1 / 3),
    ("memory of the driver", 2_000_000, "gb_driver", 1_000, 0.55),
    ("memory of an executor", 2_000_000, "0.6 + gb_task", 1_000, 0.55),
]
"""A figure, the records of its run, its formula, its unit, and by which share the formula may be wrong."""


def calculated(formula: str) -> float:
    values = {name: float(value) for name, value in NAMED.findall(COSTS)}
    return float(eval(formula, {"__builtins__": {}}, values))


def test_the_example_is_recalculated_from_the_coefficients() -> None:
    rows = EXAMPLE.findall(COSTS)
    assert (len(NAMED.findall(COSTS)), len(rows)) == (29, 13)
    for result, formula, shown in rows:
        assert float(shown.replace(",", "")) == pytest.approx(calculated(formula), rel=0.01), result


@pytest.mark.parametrize(("figure", "records", "formula", "unit", "share"), OF_CLUSTERS)
@pytest.mark.parametrize("cluster", ["standalone", "yarn"])
def test_the_formulas_are_about_right_on_clusters(
    cluster: str, figure: str, records: int, formula: str, unit: float, share: float
) -> None:
    measured = {(each.size, each.figure): each.values[0] for each in read() if each.axis == CLUSTERS}
    assert calculated(formula) == pytest.approx(measured[records, f"{cluster}: {figure}"] / unit, rel=share)


def test_the_table_is_that_of_the_raw_measurements() -> None:
    assert GROWTH.split(BEGINS)[1].split(ENDS)[0].strip() == table(read())


def test_an_exponent_is_the_slope_of_logarithms() -> None:
    # 3 n²; and by hand: logs 0, ln 10, 2 ln 10 with values 0, ln 10, ln 10 have slope 1/2.
    assert exponent([1, 7, 50], [3, 147, 7_500]) == pytest.approx((2, 0), abs=1e-6)
    assert exponent([1, 10, 100], [1, 10, 10]).slope == pytest.approx(0.5)


def test_growth_beyond_its_aim_is_missed() -> None:
    samples = [Sample("days", size, "f", "s", [value], 0) for size, value in ((1, 1.0), (10, 1.0), (100, 100.0))]
    assert (
        table(samples).splitlines()[-1]
        == "| f | s | 1 days of facts | 1 | 100 days of facts | 100 | 1.00 ± 0.58 | 0, **missed** |"
    )
    assert table(samples[:2]).splitlines()[-1] == "| f | s | 1 days of facts | 1 | 10 days of facts | 1 | 0.00 | 0 |"
