"""Lengths of time, as files and as people have them, counts and shares."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000


class _Pair(NamedTuple):
    """The unit of a long length and the smaller one beside it, with the length below which they are used, ms."""

    size_ms: int
    unit: str
    part_ms: int
    part: str
    below_ms: float


_PAIRS = (
    _Pair(_MINUTE_MS, "min", _SECOND_MS, "s", _HOUR_MS),
    _Pair(_HOUR_MS, "h", _MINUTE_MS, "min", _DAY_MS),
    _Pair(_DAY_MS, "d", _HOUR_MS, "h", math.inf),
)
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)")
"""The form of a length in a file."""
_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
ROUND_MS = (
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 20_000, 30_000,
    60_000, 120_000, 180_000, 300_000, 600_000, 900_000, 1_200_000, 1_800_000,
    3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, 86_400_000,
)  # fmt: skip
"""Lengths that are proposed in files."""


def duration_ms(text: str) -> int | None:
    """Returns whole ms of a length such as `1.5 s`.

    None when *text* is not a length.

    >>> duration_ms("1.5 s")
    1500
    """
    match = DURATION.fullmatch(text.strip())
    length_ms = float(match[1]) * _MS[match[2]] if match else math.inf
    return round(length_ms) if length_ms < math.inf else None


def length_in_toml(ms: int) -> str:
    """Returns a length of time as files have it: the inverse of `duration_ms`.

    A sentence has `for_people` instead.

    >>> length_in_toml(90_000), length_in_toml(600_000), length_in_toml(1_500)
    ('90 s', '10 min', '1500 ms')
    """
    for unit, size_ms in reversed(_MS.items()):
        if ms >= size_ms and ms % size_ms == 0:
            return f"{ms // size_ms} {unit}"
    return f"{ms} ms"


def for_people(ms: float) -> str:
    """Returns a length as pages and findings have it, so that two lengths can be compared without arithmetic.

    Below a minute it has three digits and no zeros at the end, from a minute on its two greatest units. The rest is cut
    off, not rounded: what is below a limit of an hour does not read `1 h`.

    >>> for_people(431), for_people(15_000), for_people(6_237.5), for_people(59_960), for_people(3_599_999)
    ('431 ms', '15 s', '6.24 s', '59.9 s', '59 min 59 s')
    >>> for_people(118_000), for_people(123_000), for_people(5_400_000), for_people(129_600_000)
    ('1 min 58 s', '2 min 3 s', '1 h 30 min', '1 d 12 h')
    >>> for_people(-1_500), for_people(86_400_000), for_people(2_000 * 86_400_000), for_people(0)
    ('-1.5 s', '1 d', '2,000 d', '0 ms')
    """
    if round(ms) < 0:
        return f"-{for_people(-ms)}"
    whole_ms = round(ms)
    if whole_ms < _SECOND_MS:
        return f"{whole_ms} ms"
    if whole_ms < _MINUTE_MS:
        return f"{min(float(f'{ms / _SECOND_MS:.3g}'), 59.9):g} s"
    pair = next(pair for pair in _PAIRS if whole_ms < pair.below_ms)
    units, parts = divmod(whole_ms // pair.part_ms, pair.size_ms // pair.part_ms)
    return f"{units:,} {pair.unit}" + (f" {parts} {pair.part}" if parts else "")


def counted(n: int, one: str, many: str | None = None) -> str:
    """Returns *n* with the noun for *one* thing, or for *many*; if *many* is None, that is *one* with an s.

    >>> counted(1, "record"), counted(1_200, "record"), counted(0, "key waits", "keys wait")
    ('1 record', '1,200 records', '0 keys wait')
    """
    return f"{n:,} {by_number(n, one, many or f'{one}s')}"


def by_number(n: int, one: str, many: str) -> str:
    """Returns the words that stand beside *n* things, where `counted` does not have them.

    >>> by_number(1, "is", "are"), by_number(0, "is", "are"), by_number(2, "its last batch", "its last 2 batches")
    ('is', 'are', 'its last 2 batches')
    """
    return one if n == 1 else many


def percent(share: float, digits: int = 0) -> str:
    """Returns *share*, a part of 1, as a percentage for people, with *digits* behind the point.

    A share below 1 never reads as 100 %, and a share above 0 never as 0 %.

    >>> percent(0.934), percent(0.0213, 1), percent(1), percent(0, 2), percent(-0.5)
    ('93 %', '2.1 %', '100 %', '0 %', '-50 %')
    >>> percent(0.996), percent(0.9996, 1), percent(0.0004), percent(0.00004, 2)
    ('over 99 %', 'over 99.9 %', 'under 1 %', 'under 0.01 %')
    """
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    shown, least = f"{100 * share:.{digits}f}", 10**-digits
    if share > 0 and not float(shown):
        return f"under {least:.{digits}f} %"
    if share < 1 and float(shown) == 100:
        return f"over {100 - least:.{digits}f} %"
    return f"{shown} %"


def exact_percent(share: float) -> str:
    """Returns *share*, a part of 1 from a file, such as a limit, as a percentage with all its digits.

    >>> exact_percent(0.999), exact_percent(0.01), exact_percent(1 - 0.999)
    ('99.9 %', '1 %', '0.1 %')
    """
    return f"{100 * share:.10g} %"


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
