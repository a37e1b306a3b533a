"""Whether what was measured is good enough: a verdict, and the error budget of a share.

Nothing measured is never fine: it has verdicts of its own. Lengths of time in milliseconds, instants in epoch
milliseconds. `warn_after` and `error_after` are dbt's words, error budget and burn rate those of Google's SRE Workbook.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from tidemark.errors import InvalidArgument
from tidemark.semantics.idleness import Activity


class Verdict(StrEnum):
    """What an SLA says of one measurement."""

    PASS = "pass"
    WARN = "warn"
    ERROR = "error"
    AHEAD_OF_CLOCK = "ahead_of_clock"
    """What is measured lies ahead of the clock by more than its error: a producer's clock is wrong."""
    NEVER_LOADED = "never_loaded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Sla:
    """From when on a length of time is worth a warning, and an error; None for never.

    Raises:
        InvalidArgument: both are None, one is negative, or the error comes before the warning.
    """

    warn_after_ms: float | None = None
    error_after_ms: float | None = None

    def __post_init__(self) -> None:
        limits_ms = [limit_ms for limit_ms in (self.warn_after_ms, self.error_after_ms) if limit_ms is not None]
        if not limits_ms or min(limits_ms) < 0 or limits_ms != sorted(limits_ms):
            msg = (
                "an SLA has warn_after or error_after, 0 ms or more, and no error before the warning; "
                f"got {self.warn_after_ms} and {self.error_after_ms}; swap them or leave one out"
            )
            raise InvalidArgument(msg)

    @property
    def promised_ms(self) -> int:
        """What is kept as long as this is no error, or, where nothing is, no warning; whole ms.

        >>> Sla(warn_after_ms=1_000).promised_ms, Sla(warn_after_ms=1_000, error_after_ms=2_000).promised_ms
        (1000, 2000)
        """
        return round(next(ms for ms in (self.error_after_ms, self.warn_after_ms) if ms is not None))

    @property
    def least_ms(self) -> float:
        """From where on it does not hold.

        >>> Sla(warn_after_ms=1_000, error_after_ms=2_000).least_ms
        1000
        """
        return min(ms for ms in (self.warn_after_ms, self.error_after_ms) if ms is not None)


@dataclass(frozen=True, kw_only=True)
class AtLeast:
    """How many records are too few: below `warn_below`, and below `error_below`; None for never.

    Raises:
        InvalidArgument: both are None, one is not above 0, or the error is at more records than the warning.
    """

    warn_below: int | None = None
    error_below: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.error_below, self.warn_below) if limit is not None]
        if not limits or min(limits) < 1 or limits != sorted(limits):
            msg = (
                "too few records are below warn_below or error_below, 1 or more, and the error is at no more of them; "
                f"got {self.warn_below} and {self.error_below}; swap them or leave one out"
            )
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A contract is kept or not: there is no limit to set."""


def judge_contract(*, is_broken: bool, is_judged: bool) -> Verdict:
    """The verdict on a contract: unknown as long as no row *is_judged*, unless what is there is wrong already."""
    if is_broken:
        return Verdict.ERROR
    return Verdict.PASS if is_judged else Verdict.UNKNOWN


def judge_count(n: int, at_least: AtLeast) -> Verdict:
    """The verdict on *n* records."""
    if at_least.error_below is not None and n < at_least.error_below:
        return Verdict.ERROR
    return Verdict.WARN if at_least.warn_below is not None and n < at_least.warn_below else Verdict.PASS


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a table; `source_idle` says that a pass is owed to a source that had nothing to send."""

    verdict: Verdict
    staleness_ms: int | None
    source_idle: bool


def judge(measured_ms: float | None, sla: Sla) -> Verdict:
    """The verdict on a measurement, which reaches a limit by being equal to it; unknown when there is none."""
    if measured_ms is None:
        return Verdict.UNKNOWN
    if sla.error_after_ms is not None and measured_ms >= sla.error_after_ms:
        return Verdict.ERROR
    return Verdict.WARN if sla.warn_after_ms is not None and measured_ms >= sla.warn_after_ms else Verdict.PASS


def is_ahead(newest_ms: int | None, *, now_ms: int, clock_error_ms: int) -> bool:
    """Whether *newest_ms* is ahead of *now_ms* by more than *clock_error_ms*; all are epoch ms or ms."""
    return newest_ms is not None and newest_ms - now_ms > clock_error_ms


def judge_nothing(*, now_ms: int, sla: Sla, begun_ms: int | None) -> Verdict:
    """The verdict where there never was anything to measure: unknown as long after *begun_ms* as *sla* promises."""
    is_new = begun_ms is not None and now_ms - begun_ms < sla.promised_ms
    return Verdict.UNKNOWN if is_new else Verdict.NEVER_LOADED


def judge_staleness(
    newest_ms: int | None,
    *,
    now_ms: int,
    sla: Sla,
    source: Activity | None = None,
    clock_error_ms: int = 0,
    begun_ms: int | None = None,
) -> Judgement:
    """The verdict on a table whose newest visible event is *newest_ms*, None when it has never had one.

    A topology that began at *begun_ms*, None if it never did, has as long as the SLA allows until its first event.

    A table is not stale when its *source* is idle, which is silent and read to its end. A backlogged one excuses
    nothing, nor does one of which nothing is known. Staleness is negative when the newest event lies ahead of *now_ms*:
    by more than *clock_error_ms* that is no pass, idle or not.
    """
    idle = source is Activity.IDLE
    if newest_ms is None:
        verdict = judge_nothing(now_ms=now_ms, sla=sla, begun_ms=begun_ms)
        return Judgement(verdict=verdict, staleness_ms=None, source_idle=idle)
    staleness_ms = now_ms - newest_ms
    verdict = Verdict.PASS if idle else judge(staleness_ms, sla)
    if is_ahead(newest_ms, now_ms=now_ms, clock_error_ms=clock_error_ms):
        verdict = Verdict.AHEAD_OF_CLOCK
    return Judgement(verdict=verdict, staleness_ms=staleness_ms, source_idle=idle)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """That at least the share `target` of all records has a latency of `threshold_ms` or less.

    Raises:
        InvalidArgument: `target` is not between 0 and 1, without both: of nothing and of all there is no budget.
    """

    threshold_ms: int
    target: float

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            msg = f"a target is a share above 0 and below 1, got {self.target}; 99 % is 0.99"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What became of the error budget, which is the share 1 − target of all records.

    `burn_rate` 1 spends it exactly, over the time the records are from; `remaining` is the unspent part, negative
    when overspent. All are None without records.
    """

    share_over: float | None
    burn_rate: float | None
    remaining: float | None


def budget(objective: Objective, *, n: int, n_over: int) -> Budget:
    """The error budget after *n* records of which *n_over* took longer than the threshold.

    Raises:
        InvalidArgument: not 0 ≤ n_over ≤ n.
    """
    if not 0 <= n_over <= n:
        msg = f"records over a threshold are some of all records, got {n_over} of {n}; count both over the same records"
        raise InvalidArgument(msg)
    if n == 0:
        return Budget(share_over=None, burn_rate=None, remaining=None)
    share = Fraction(n_over, n)
    burn_rate = share / (1 - Fraction(str(objective.target)))
    return Budget(share_over=float(share), burn_rate=float(burn_rate), remaining=float(1 - burn_rate))


@dataclass(frozen=True, kw_only=True)
class BurnRate:
    """From which burn rate of the error budget of `objective` on it is a warning, and an error.

    Raises:
        InvalidArgument: a rate is not above 0, the error is at a lower one than the warning, or at one that is never
            reached: all records over the threshold burn at 1 / (1 − target).
    """

    objective: Objective
    warn_at: float
    error_at: float

    def __post_init__(self) -> None:
        if not 0 < self.warn_at <= self.error_at:
            msg = f"burn rates are above 0, the warning's first, got {self.warn_at} and {self.error_at}; swap them"
            raise InvalidArgument(msg)
        highest = float(1 / (1 - Fraction(str(self.objective.target))))
        if self.error_at > highest:
            msg = f"with a target of {self.objective.target} no burn rate is above {highest:g}, got {self.error_at}"
            raise InvalidArgument(msg)


def judge_burn(burn_rates: Iterable[float | None], *, warn_at: float, error_at: float) -> Verdict:
    """The verdict on the burn rates of a long and a short window, or more: all have to reach a rate.

    The long one says that it matters, the short one that it has not ended yet. Unknown when one is None.
    """
    rates = [*burn_rates]
    known = [rate for rate in rates if rate is not None]
    if not rates or len(known) < len(rates):
        return Verdict.UNKNOWN
    if min(known) >= error_at:
        return Verdict.ERROR
    return Verdict.WARN if min(known) >= warn_at else Verdict.PASS
