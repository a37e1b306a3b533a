"""Finds the record that kills its reader, by number of tries."""

from __future__ import annotations

import pytest

from tidemark.stream.read.parts import Ranges
from tidemark.stream.startup.fatal import fatal_record

RANGES = {"a": {0: (5, 9), 2: (100, 103)}, "b": {1: (7, 8)}}
"""Eight records."""
ALL = [*(("a", 0, n) for n in range(5, 9)), *(("a", 2, n) for n in range(100, 103)), ("b", 1, 7)]


def places(ranges: Ranges) -> list[tuple[str, int, int]]:
    parts = [(topic, number, *offsets) for topic, of in ranges.items() for number, offsets in of.items()]
    return [(topic, number, offset) for topic, number, start, end in parts for offset in range(start, end)]


@pytest.mark.parametrize("fatal", ALL)
def test_the_record_is_found_in_two_and_log_n_tries(fatal: tuple[str, int, int]) -> None:
    tries: list[Ranges] = []

    def kills(ranges: Ranges) -> bool:
        tries.append(ranges)
        return fatal in places(ranges)

    assert fatal_record(RANGES, kills) == fatal
    assert places(tries[0]) == ALL
    assert len(tries) <= 5


def test_of_several_the_first_is_found() -> None:
    assert fatal_record(RANGES, lambda ranges: bool({ALL[2], ALL[5]} & {*places(ranges)})) == ALL[2]


def test_none_is_found_where_the_host_kills_every_process() -> None:
    assert fatal_record(RANGES, lambda _: True) is None
    assert fatal_record({"a": {0: (5, 6)}}, lambda _: True) is None
    assert fatal_record({"a": {0: (5, 6)}}, bool) == ("a", 0, 5)


def test_none_is_found_where_the_whole_can_be_read() -> None:
    tries: list[Ranges] = []
    assert fatal_record(RANGES, lambda ranges: bool(tries.append(ranges))) is None
    assert len(tries) == 1


def test_none_is_found_where_only_many_together_kill() -> None:
    assert fatal_record(RANGES, lambda ranges: len(places(ranges)) > 3) is None
