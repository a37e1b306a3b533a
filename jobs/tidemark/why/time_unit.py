"""In which unit a timestamp that is out of range would be plausible."""

from __future__ import annotations

from collections import Counter

from tidemark.spec.operators import Source
from tidemark.why.wrong_type import json_object

_MS_PER = {"s": 1_000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}


def plausible_unit(source: Source, values: list[bytes | None]) -> str | None:
    """The one unit in which most of the timestamps in *values*, records of *source*, would have been in range."""
    low_ms, high_ms = source.timestamp_range_ms
    numbers = [number for value in values if (number := _timestamp(source, value)) is not None]
    fits = Counter(
        unit for number in numbers for unit, ms in _MS_PER.items() if low_ms <= number * ms < high_ms
    )  # fmt: skip
    unit, n = fits.most_common(1)[0] if fits else ("", 0)
    return unit if n * 2 > len(values) else None


def _timestamp(source: Source, value: bytes | None) -> float | None:
    """The number that the JSON record *value* has as its timestamp; None where it has none."""
    number = (json_object(value) or {}).get(source.timestamp or "")
    return float(number) if isinstance(number, int | float) and not isinstance(number, bool) else None


def timestamp_ms(source: Source, value: bytes | None) -> float | None:
    """The time of the JSON record *value* by the unit of *source*, epoch ms; None where it has no number."""
    number = _timestamp(source, value)
    return None if number is None else number * _MS_PER[source.timestamp_unit]
