"""The plan of a deployment follows from its formulas, and the page about growth from raw measurements."""

from __future__ import annotations

import re

import pytest
from bench.growth_page import BEGINS, CLUSTERS, ENDS, PAGE, Sample, exponent, read, table

COSTS, GROWTH = PAGE.with_name("performance.md").read_text(), PAGE.read_text()
NAMED = re.compile(r"^\| `(\w+)` \| ([\d.]+) \|", re.MULTILINE)
EXAMPLE = re.compile(r"^\| ([^|`]+) \| `([\w\s.+*/()-]+)` \| ([\d,.]+) \|$", re.MULTILINE)

CHECKED = re.compile(
    r"^\| ([^|`]+) \| ([\d,]+) \| `([\w\s.+*/()-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.MULTILINE
)
MEASURED = {
    "CPU s of the driver": ("CPU of the driver", 1), "CPU s of the executors": ("CPU of the executors", 1),
    "GB of the driver": ("memory of the driver", 1_000), "MB of tables": ("bytes of tables", 1e6),
    "GB of an executor of one core, its JVM with 0.6": ("memory of an executor", 1_000),
}  # fmt: skip
"""By row of the check on clusters, its figure and its unit."""


def calculated(formula: str) -> float:
    values = {name: float(value) for name, value in NAMED.findall(COSTS)}
    return float(eval(formula, {"__builtins__": {}}, values))


def test_the_example_is_recalculated_from_the_coefficients() -> None:
    rows = EXAMPLE.findall(COSTS)
    assert (len(NAMED.findall(COSTS)), len(rows)) == (29, 13)
    for result, formula, shown in rows:
        assert float(shown.replace(",", "")) == pytest.approx(calculated(formula), rel=0.01), result


def test_the_check_on_clusters_is_recalculated() -> None:
    measured = {(each.size, each.figure): each.values[0] for each in read() if each.axis == CLUSTERS}
    rows = CHECKED.findall(GROWTH)
    assert len(rows) == 7
    for figure, records, formula, predicted, *shown in rows:
        name, unit = MEASURED[figure]
        assert float(predicted) == pytest.approx(calculated(formula), rel=0.02), figure
        for cluster, value in zip(("standalone", "yarn"), shown, strict=True):
            found = measured[int(records.replace(",", "")), f"{cluster}: {name}"] / unit
            assert float(value) == pytest.approx(found, rel=0.02), figure


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
