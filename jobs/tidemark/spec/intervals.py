"""Half-open intervals [start, end) of epoch ms UTC, and the grains they are rolled up to.

Predicates are text that Spark and delta-rs read alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tidemark.errors import InvalidArgument


class Grain(StrEnum):
    """Lengths of interval that facts are rolled up to, each a whole number of the one before."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length_ms(self) -> int:
        """Its length; UTC has no days of any other."""
        return {Grain.MINUTE: 60_000, Grain.HOUR: 3_600_000, Grain.DAY: 86_400_000}[self]


@dataclass(frozen=True)
class Interval:
    """The instants from *start_ms*, inclusive, to *end_ms*, exclusive; raises InvalidArgument when there is none."""

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            got = f"[{iso(self.start_ms)}, {iso(self.end_ms)})"
            msg = f"an interval starts before it ends, got {got}; swap --from and --to?"
            raise InvalidArgument(msg)

    @property
    def length_ms(self) -> int:
        """From start to end."""
        return self.end_ms - self.start_ms

    def widened(self, grain: Grain) -> Interval:
        """The whole intervals of *grain* that this one touches.

        >>> Interval(61_000, 119_000).widened(Grain.MINUTE)
        Interval(start_ms=60000, end_ms=120000)
        """
        length = grain.length_ms
        return Interval(self.start_ms // length * length, -(-self.end_ms // length) * length)

    def holds(self, column: str) -> str:
        """A predicate: the timestamp *column* lies in this interval.

        Its bounds are text, since delta-rs refuses to compare a column of µs with a TIMESTAMP literal, which has ns.
        """
        return f"({column} >= '{iso(self.start_ms)}' and {column} < '{iso(self.end_ms)}')"


def joined(starts_ms: Iterable[int], grain: Grain) -> list[Interval]:
    """The intervals of *grain* that start at *starts_ms*, in order; those without a gap between them are one.

    >>> joined([120_000, 0, 60_000, 300_000], Grain.MINUTE)
    [Interval(start_ms=0, end_ms=180000), Interval(start_ms=300000, end_ms=360000)]
    """
    found: list[Interval] = []
    for start_ms in sorted(set(starts_ms)):
        before = [found.pop()] if found and found[-1].end_ms == start_ms else []
        found.append(Interval(before[0].start_ms if before else start_ms, start_ms + grain.length_ms))
    return found


def instant_ms(text: str) -> int:
    """Epoch ms of an ISO instant; without a zone it is UTC. Raises InvalidArgument.

    >>> instant_ms("1970-01-01T01:00:00+01:00")
    0
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        msg = f"an instant is written in ISO 8601, got {text!r}; write, for example, 2026-01-31T12:00:00Z"
        raise InvalidArgument(msg) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def iso(at_ms: int) -> str:
    """ISO 8601 text of epoch ms, UTC.

    >>> iso(1)
    '1970-01-01T00:00:00.001Z'
    """
    return utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(at_ms: int) -> datetime:
    """The instant of epoch ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def is_text(column: str, text: str) -> str:
    """A predicate: *column* is *text*, whatever quotes that holds."""
    quoted = text.replace("'", "''")
    return f"({column} = '{quoted}')"
