"""Lengths of time for people."""

from __future__ import annotations

import math

_UNITS = ((1, "ms", 1_000), (1_000, "s", 120_000), (60_000, "min", 7_200_000), (3_600_000, "h", 172_800_000))
"""Each unit in ms, with the length below which it is used."""
_DAY_MS = 86_400_000
ROUND_MS = (
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 20_000, 30_000,
    60_000, 120_000, 180_000, 300_000, 600_000, 900_000, 1_200_000, 1_800_000,
    3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
)  # fmt: skip
"""Lengths that are proposed in files."""


def unit_of(ms: float) -> tuple[int, str]:
    """Returns the most readable unit of a length: its ms and name."""
    return next(((size, unit) for size, unit, below_ms in _UNITS if abs(ms) < below_ms), (_DAY_MS, "d"))


def for_people(ms: float) -> str:
    """Returns a length in its most readable unit.

    It has three digits and no zeros at the end.

    >>> for_people(431), for_people(15_000), for_people(6_237.5), for_people(200_000), for_people(312_000)
    ('431 ms', '15 s', '6.24 s', '3.33 min', '5.2 min')
    >>> for_people(-1_500), for_people(86_400_000), for_people(2_000 * 86_400_000), for_people(0)
    ('-1.5 s', '24 h', '2,000 d', '0 ms')
    """
    size_ms, unit = unit_of(ms)
    n = ms / size_ms
    digits = 0 if unit == "ms" or abs(n) >= 100 else 1 if abs(n) >= 10 else 2
    text = f"{n:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} {unit}"


def rounded_up(length_ms: float) -> int:
    """Returns the least length of ROUND_MS that is not below *length_ms*; beyond them it is in whole days.

    >>> rounded_up(1_001), rounded_up(90_000_000)
    (2000, 172800000)
    """
    return next((ms for ms in ROUND_MS if ms >= length_ms), math.ceil(length_ms / _DAY_MS) * _DAY_MS)


def rounded_down(length_ms: float) -> int:
    """Returns the greatest length of ROUND_MS that is not above *length_ms*, or 0; beyond them it is in whole days.

    >>> rounded_down(999), rounded_down(90_000_000), rounded_down(9)
    (500, 86400000, 0)
    """
    if length_ms >= ROUND_MS[-1]:
        return math.floor(length_ms / _DAY_MS) * _DAY_MS
    return max((ms for ms in ROUND_MS if ms <= length_ms), default=0)
