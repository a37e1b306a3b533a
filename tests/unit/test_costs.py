"""Sums of the costs page equal its counts times its prices."""

from __future__ import annotations

import re

import pytest

from tidemark.model.project.files import CHECKOUT as PROJECT

PAGE = (PROJECT / "docs" / "performance.md").read_text()
WRITES_USD, READS_USD = 0.005 / 1_000, 0.0004 / 1_000
NUMBER = r"([\d,.]+)"
OF_A_DAY = re.compile(rf"^\| ([^|]+) \| {NUMBER} \| {NUMBER} \| {NUMBER} \| {NUMBER} \|$", re.MULTILINE)


def rows() -> dict[str, list[float]]:
    section = PAGE.split("## What a day costs")[1].split("\n## ")[0]
    return {name: [float(n.replace(",", "")) for n in numbers] for name, *numbers in OF_A_DAY.findall(section)}


def test_each_sum_is_counts_times_prices() -> None:
    assert len(rows()) == 4
    for puts, lists, gets, usd in rows().values():
        assert usd == pytest.approx((puts + lists) * WRITES_USD + gets * READS_USD, abs=0.005)


def test_counts_of_an_idle_minute_are_within_the_limit() -> None:
    assert sum(rows()["idle"][:3]) / 1_440 <= 10
