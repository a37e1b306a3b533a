"""Half-open intervals [start, end) of epoch ms UTC, and their grains.

Facts are rolled up to grains. Predicates are text that Spark and delta-rs read alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from tidemark.errors import InvalidArgument


class Scope(StrEnum):
    """The records that a row of a rollup counts."""

    OPERATOR = "operator"
    TASK = "task"
    """Records of an operator from one input partition."""
    TOPOLOGY = "topology"
    """Records that the terminal operators finished."""
    PATH = "path"
    """Records that the terminal operator at the path's end finished."""


class Grain(StrEnum):
    """Lengths of rolled-up intervals, each a multiple of the one before."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"

    @property
    def length_ms(self) -> int:
        """Its length; days of UTC are equally long."""
        return {Grain.MINUTE: 60_000, Grain.HOUR: 3_600_000, Grain.DAY: 86_400_000}[self]


@dataclass(frozen=True)
class Interval:
    """The instants from *start_ms*, inclusive, to *end_ms*, exclusive.

    Raises:
        InvalidArgument: there is none.
    """

    start_ms: int
    end_ms: int

    def __post_init__(self) -> None:
        if self.start_ms >= self.end_ms:
            got = f"[{iso(self.start_ms)}, {iso(self.end_ms)})"
            msg = f"an interval must start before it ends, got {got}; swap --from and --to?"
            raise InvalidArgument(msg)

    @property
    def length_ms(self) -> int:
        """From start to end."""
        return self.end_ms - self.start_ms

    def widened(self, grain: Grain) -> Interval:
        """Returns the whole intervals of *grain* that this one touches.

        >>> Interval(61_000, 119_000).widened(Grain.MINUTE)
        Interval(start_ms=60000, end_ms=120000)
        """
        length = grain.length_ms
        return Interval(self.start_ms // length * length, -(-self.end_ms // length) * length)

    def holds(self, column: str) -> str:
        """Returns a predicate: the timestamp *column* lies in this interval."""
        # The bounds are text: delta-rs refuses to compare a column of µs with a TIMESTAMP literal, which has ns.
        return f"({column} >= '{iso(self.start_ms)}' and {column} < '{iso(self.end_ms)}')"


def join_intervals(starts_ms: Iterable[int], grain: Grain) -> list[Interval]:
    """Returns the intervals of *grain* that start at *starts_ms*, in order.

    Intervals without a gap between them become one.

    >>> join_intervals([120_000, 0, 60_000, 300_000], Grain.MINUTE)
    [Interval(start_ms=0, end_ms=180000), Interval(start_ms=300000, end_ms=360000)]
    """
    intervals: list[Interval] = []
    for start_ms in sorted(set(starts_ms)):
        touches = bool(intervals) and intervals[-1].end_ms == start_ms
        first_ms = intervals.pop().start_ms if touches else start_ms
        intervals.append(Interval(first_ms, start_ms + grain.length_ms))
    return intervals


def instant_ms(text: str) -> int:
    """Returns epoch ms of an ISO instant, by default in UTC.

    Raises:
        InvalidArgument: it is no instant.

    >>> instant_ms("1970-01-01T01:00:00+01:00")
    0
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        msg = f"an instant must be in ISO 8601, got {text!r}; write, for example, 2026-01-31T12:00:00Z"
        raise InvalidArgument(msg) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def iso(at_ms: int) -> str:
    """Returns ISO 8601 text of epoch ms, UTC.

    >>> iso(1)
    '1970-01-01T00:00:00.001Z'
    """
    return utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(at_ms: int) -> datetime:
    """Returns the instant of epoch ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def is_text(column: str, text: str) -> str:
    """Returns a predicate: *column* is *text*, with its quotes escaped."""
    quoted = text.replace("'", "''")
    return f"({column} = '{quoted}')"
