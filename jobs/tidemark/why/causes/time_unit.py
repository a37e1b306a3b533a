"""Finds the unit in which out-of-range timestamps would be plausible."""

from __future__ import annotations

from collections import Counter

from tidemark.model.kinds.source import Source
from tidemark.why.causes.wrong_type import json_object

_MS_PER = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


def plausible_unit(source: Source, values: list[bytes | None]) -> str | None:
    """Returns the unit in which most timestamps would have been in range; None if there is no such unit.

    *values* are the JSON records of *source* whose timestamps are out of range.
    """
    low_ms, high_ms = source.timestamp_range_ms
    numbers = [number for value in values if (number := _timestamp(source, value)) is not None]
    fits: Counter[str] = Counter()
    for number in numbers:
        fits.update(unit for unit, ms in _MS_PER.items() if low_ms <= number * ms < high_ms)
    unit, n = fits.most_common(1)[0] if fits else ("", 0)
    return unit if n * 2 > len(values) else None


def _timestamp(source: Source, value: bytes | None) -> float | None:
    """Returns the timestamp of the JSON record *value* as it is written there; None if it is no number."""
    number = (json_object(value) or {}).get(source.timestamp or "")
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def timestamp_ms(source: Source, value: bytes | None) -> float | None:
    """Returns the timestamp of the JSON record *value* in epoch ms, by the unit of *source*; None if it is no
    number.
    """
    number = _timestamp(source, value)
    return None if number is None else number * _MS_PER[source.timestamp_unit]
