"""Lengths of time for people."""

from __future__ import annotations

_UNITS = ((1, "ms", 1_000), (1_000, "s", 120_000), (60_000, "min", 7_200_000), (3_600_000, "h", 172_800_000))
"""Each unit in ms, with the length below which it is used."""
_DAY_MS = 86_400_000


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
