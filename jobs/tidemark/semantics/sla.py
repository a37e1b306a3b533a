"""Judges measurements by SLAs: a verdict for each, and for objectives an error budget.

A missing measurement is never fine: it has verdicts of its own. Lengths of time in milliseconds, instants in epoch
milliseconds. `warn_after` and `error_after` are dbt's words, error budget and burn rate those of Google's SRE Workbook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from zoneinfo import ZoneInfo

from tidemark.errors import InvalidArgument
from tidemark.selection import present
from tidemark.semantics.completeness import DAY_MS
from tidemark.semantics.idleness import Activity
from tidemark.semantics.windows import clock_ms, instant_of


class Unit(StrEnum):
    """Units of what SLAs measure and limit."""

    MS = "ms"
    RECORDS = "records"
    CHANGES = "changes"
    ROWS = "rows"
    BURN_RATE = "burn rate"
    SHARE = "share"
    """Of records, from 0 to 1."""


class Verdict(StrEnum):
    """The verdict of an SLA on one measurement."""

    PASS = "pass"
    WARN = "warn"
    ERROR = "error"
    AHEAD_OF_CLOCK = "ahead_of_clock"
    """The event lies ahead of the clock by more than the clock's error: a producer's clock is wrong."""
    NEVER_LOADED = "never_loaded"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """Severity of a broken SLA; channels can filter by it."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Sla:
    """An SLA on a length of time, such as staleness or a quantile of latency.

    It warns from `warn_after_ms` on, and is in error from `error_after_ms` on; a limit that is None is never reached. A
    quantile is judged only over `min_records` records or more.

    Raises:
        InvalidArgument: both limits are None, a limit is negative, `error_after_ms` is below `warn_after_ms`, or
            `min_records` is below 1.
    """

    warn_after_ms: float | None = None
    error_after_ms: float | None = None
    min_records: int = 1

    def __post_init__(self) -> None:
        limits_ms = present((self.warn_after_ms, self.error_after_ms))
        if not limits_ms or min(limits_ms) < 0 or limits_ms != sorted(limits_ms):
            msg = (
                "an SLA needs warn_after or error_after, 0 ms or more, and error_after not below warn_after; "
                f"got {self.warn_after_ms} and {self.error_after_ms}; swap them or leave one out"
            )
            raise InvalidArgument(msg)
        if self.min_records < 1:
            msg = f"a quantile needs min_records of 1 or more, got {self.min_records}; leave it out"
            raise InvalidArgument(msg)

    @property
    def promised_ms(self) -> int:
        """The promised length in whole ms: `error_after_ms`, or `warn_after_ms` if that is None.

        >>> Sla(warn_after_ms=1_000).promised_ms, Sla(warn_after_ms=1_000, error_after_ms=2_000).promised_ms
        (1000, 2000)
        """
        return round(present((self.error_after_ms, self.warn_after_ms))[0])

    @property
    def least_ms(self) -> float:
        """The shortest length that breaks the SLA.

        >>> Sla(warn_after_ms=1_000, error_after_ms=2_000).least_ms
        1000
        """
        return min(present((self.warn_after_ms, self.error_after_ms)))


@dataclass(frozen=True, kw_only=True)
class RecordMinimums:
    """Numbers of records below which an SLA warns, and is in error; None for a limit that it does not have.


    Raises:
        InvalidArgument: both are None, one is not above 0, or the error is at more records than the warning.
    """

    warn_below: int | None = None
    error_below: int | None = None

    def __post_init__(self) -> None:
        limits = present((self.error_below, self.warn_below))
        if not limits or min(limits) < 1 or limits != sorted(limits):
            msg = (
                "an SLA of records needs warn_below or error_below, 1 or more, and error_below not above warn_below; "
                f"got {self.warn_below} and {self.error_below}; swap them or leave one out"
            )
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class ChangeMaximums:
    """Numbers of changes above which an SLA warns, and is in error; None for a limit that it does not have.


    Raises:
        InvalidArgument: both are None, one is below 0, or the error is at fewer changes than the warning.
    """

    warn_above: int | None = None
    error_above: int | None = None

    def __post_init__(self) -> None:
        limits = present((self.warn_above, self.error_above))
        if not limits or min(limits) < 0 or limits != sorted(limits):
            msg = (
                "an SLA of changes needs warn_above or error_above, 0 or more, and warn_above not above error_above; "
                f"got {self.warn_above} and {self.error_above}; swap them or leave one out"
            )
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class ShareMaximums:
    """Shares of records above which an SLA warns, and is in error; None for a limit that it does not have.

    A share is judged only over `min_records` records or more.


    Raises:
        InvalidArgument: both are None, one is below 0 or not below 1, the error is at a smaller share than the warning,
            or fewer than one record is enough.
    """

    warn_above: float | None = None
    error_above: float | None = None
    min_records: int = 1

    def __post_init__(self) -> None:
        limits = present((self.warn_above, self.error_above))
        if not limits or min(limits) < 0 or max(limits) >= 1 or limits != sorted(limits):
            msg = (
                "an SLA of a share needs warn_above or error_above, from 0 to below 1, and warn_above not above "
                f"error_above; got {self.warn_above} and {self.error_above}; 5 % is 0.05"
            )
            raise InvalidArgument(msg)
        if self.min_records < 1:
            msg = f"a share needs min_records of 1 or more, got {self.min_records}; leave it out"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class ContractRule:
    """A contract: it is kept or broken, and has no limit."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When an interval must be complete.

    With `after_ms` the deadline is so long after the interval's end. With `minute` it is the first time from the end on
    at which the clock of `timezone` shows so many minutes after midnight.
    """

    after_ms: int | None = None
    minute: int | None = None
    timezone: str = "UTC"

    def at_ms(self, end_ms: int) -> int:
        """Returns the deadline of an interval that ends at *end_ms*, epoch ms.

        >>> Deadline(after_ms=600_000).at_ms(0), Deadline(minute=360).at_ms(86_400_000)
        (600000, 108000000)
        """
        if self.minute is None:
            return end_ms + (self.after_ms or 0)
        zone = ZoneInfo(self.timezone)
        day_ms = clock_ms(end_ms, zone) // DAY_MS * DAY_MS
        days = (instant_of(day + self.minute * 60_000, zone) for day in (day_ms, day_ms + DAY_MS))
        return next(at_ms for at_ms in days if at_ms >= end_ms)


@dataclass(frozen=True, kw_only=True)
class CompleteBy:
    """The verdict on the intervals of a table.

    Attributes:
        verdict: the verdict.
        observed_ms: how long after its end the judged interval was complete, or for how long it has not been complete
            if it still `is_open`; None if no interval is judged.
        is_open: the judged interval is not complete.
        end_ms: the end of the judged interval, epoch ms.
        crossed_ms: the first deadline that is broken, epoch ms; None if none is.
    """

    verdict: Verdict
    observed_ms: int | None = None
    is_open: bool = False
    end_ms: int | None = None
    crossed_ms: int | None = None


def due_ms(deadline: Deadline, end_ms: int, *, excused_since: Callable[[int], int | None]) -> int:
    """Returns the deadline of an interval that ends at *end_ms*, epoch ms.

    If the deadline lies in a time in which the SLA is not judged, it counts from the end of that time, as if the
    interval had ended then. *excused_since* returns this end for an instant in such a time, and None for any other.

    >>> due_ms(Deadline(after_ms=100), 1_000, excused_since=lambda at_ms: 5_000 if at_ms < 5_000 else None)
    5100
    """
    at_ms = deadline.at_ms(end_ms)
    since_ms = excused_since(at_ms)
    return at_ms if since_ms is None else deadline.at_ms(max(end_ms, since_ms))


def judge_complete_by(
    completions: Iterable[tuple[int, int]],
    deadline: Deadline,
    next_end: Callable[[int], int],
    *,
    now_ms: int,
    over_ms: int,
    clock_error_ms: int = 0,
    excused_since: Callable[[int], int | None] = lambda _: None,
) -> CompleteBy:
    """Returns the verdict on the intervals of a table; unknown without any.

    From its deadline on the first interval that is not complete is judged. Before its deadline the SLA is judged by the
    interval that took longest among those that were complete within *over_ms*, so one late interval breaks the SLA
    once. An interval that was complete before its end, by more than the clock's error, lies ahead of the clock.

    Args:
        completions: end of each complete interval and the instant at which it was complete, epoch ms: of the newest
            one, and of those within *over_ms*.
        deadline: when an interval must be complete.
        next_end: returns the end of the interval that begins at an instant.
        now_ms: the clock of the check.
        over_ms: length of time before *now_ms* in which a late interval counts.
        clock_error_ms: by how much the clocks may be wrong.
        excused_since: as in `due_ms`.
    """
    ends = dict(completions)
    if not ends:
        return CompleteBy(verdict=Verdict.UNKNOWN)
    newest_ms = max(ends)
    if is_ahead(newest_ms, now_ms=ends[newest_ms], clock_error_ms=clock_error_ms):
        return CompleteBy(verdict=Verdict.AHEAD_OF_CLOCK, observed_ms=ends[newest_ms] - newest_ms, end_ms=newest_ms)
    due_at = partial(due_ms, deadline, excused_since=excused_since)
    lately = {end: at for end, at in ends.items() if at > now_ms - over_ms or end == newest_ms}
    late = {end: at for end, at in lately.items() if at > due_at(end) and at > now_ms - over_ms}
    open_end_ms = next_end(newest_ms)
    is_open = now_ms >= due_at(open_end_ms)
    broken = [due_at(end) for end in (*late, *([open_end_ms] if is_open else []))]
    if is_open:
        end_ms, observed_ms = open_end_ms, now_ms - open_end_ms
    else:
        end_ms, at_ms = max((late or lately).items(), key=lambda one: one[1] - one[0])
        observed_ms = at_ms - end_ms
    return CompleteBy(
        verdict=Verdict.ERROR if broken else Verdict.PASS,
        observed_ms=observed_ms,
        is_open=is_open,
        end_ms=end_ms,
        crossed_ms=min(broken, default=None),
    )


def judge_contract(*, is_broken: bool, is_judged: bool) -> Verdict:
    """Returns the verdict on a contract: unknown until a row was judged, unless the contract is broken already."""
    if is_broken:
        return Verdict.ERROR
    return Verdict.PASS if is_judged else Verdict.UNKNOWN


def judge_count(n: int, at_least: RecordMinimums) -> Verdict:
    """Returns the verdict on *n* records."""
    if at_least.error_below is not None and n < at_least.error_below:
        return Verdict.ERROR
    return Verdict.WARN if at_least.warn_below is not None and n < at_least.warn_below else Verdict.PASS


def judge_changes(n: int, at_most: ChangeMaximums) -> Verdict:
    """Returns the verdict on *n* changes."""
    if at_most.error_above is not None and n > at_most.error_above:
        return Verdict.ERROR
    return Verdict.WARN if at_most.warn_above is not None and n > at_most.warn_above else Verdict.PASS


def judge_share(n: int, of: int, at_most: ShareMaximums) -> Verdict:
    """Returns the verdict on a share of *n* records *of* so many; unknown if *of* is too small to judge.

    >>> judge_share(5, 100, ShareMaximums(error_above=0.05)), judge_share(6, 100, ShareMaximums(error_above=0.05))
    (<Verdict.PASS: 'pass'>, <Verdict.ERROR: 'error'>)
    """
    if of < at_most.min_records:
        return Verdict.UNKNOWN
    # The fraction of the text: a limit of 0.05 is 5/100, and not the nearest double.
    share = Fraction(n, of)
    if at_most.error_above is not None and share > Fraction(str(at_most.error_above)):
        return Verdict.ERROR
    return (
        Verdict.WARN if at_most.warn_above is not None and share > Fraction(str(at_most.warn_above)) else Verdict.PASS
    )


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on the staleness of a table.

    Attributes:
        verdict: the verdict.
        staleness_ms: now − the newest visible event; None if the table never had one.
        source_idle: the source of the table had nothing to send, so the table is not stale.
        crossed_ms: when the staleness crossed the lowest limit, or when the table should have had its first event,
            epoch ms; None if neither happened, or that is not known.
    """

    verdict: Verdict
    staleness_ms: int | None
    source_idle: bool
    crossed_ms: int | None = None


def judge(measured_ms: float | None, sla: Sla) -> Verdict:
    """Returns the verdict on a measurement; unknown without one."""
    if measured_ms is None:
        return Verdict.UNKNOWN
    # A measurement that is equal to a limit reaches it.
    if sla.error_after_ms is not None and measured_ms >= sla.error_after_ms:
        return Verdict.ERROR
    return Verdict.WARN if sla.warn_after_ms is not None and measured_ms >= sla.warn_after_ms else Verdict.PASS


def longest_kept_ms(limit_ms: float) -> int:
    """Returns the longest length, in whole ms, that does not break a limit of an SLA.

    A length equal to the limit breaks it. The threshold of an objective and a deadline are different: a length equal to
    those still keeps them.

    >>> longest_kept_ms(1_000), longest_kept_ms(0.5), judge(1_000, Sla(error_after_ms=1_000))
    (999, 0, <Verdict.ERROR: 'error'>)
    """
    return math.ceil(limit_ms) - 1


def judge_quantile(measured_ms: float | None, sla: Sla, *, n: int) -> Verdict:
    """Returns the verdict on a quantile of *n* records; unknown if these are too few.

    >>> judge_quantile(9, Sla(error_after_ms=5), n=1), judge_quantile(9, Sla(error_after_ms=5, min_records=2), n=1)
    (<Verdict.ERROR: 'error'>, <Verdict.UNKNOWN: 'unknown'>)
    """
    return judge(measured_ms, sla) if n >= sla.min_records else Verdict.UNKNOWN


def crossed_ms(age_ms: float, sla: Sla, *, now_ms: int) -> int | None:
    """Returns when something of the age *age_ms* crossed the lowest limit, epoch ms; None if it is not that old.

    An age grows by a second each second.

    >>> crossed_ms(90_000, Sla(error_after_ms=60_000), now_ms=100_000), crossed_ms(1, Sla(error_after_ms=2), now_ms=9)
    (70000, None)
    """
    beyond_ms = age_ms - sla.least_ms
    return now_ms - round(beyond_ms) if beyond_ms >= 0 else None


def never_loaded_since_ms(*, now_ms: int, begun_ms: int | None, within_ms: int) -> int | None:
    """Returns since when a first measurement has been missing, epoch ms: `judge_nothing` judges it by the same rule.

    None while the first measurement is not due, and if nothing has begun.

    Args:
        now_ms: the clock of the check.
        begun_ms: when the topology began; None if it never did.
        within_ms: how long after that the first measurement is due.
    """
    return begun_ms + within_ms if begun_ms is not None and now_ms - begun_ms >= within_ms else None


def is_ahead(newest_ms: int | None, *, now_ms: int, clock_error_ms: int) -> bool:
    """Returns True if the instant *newest_ms* is ahead of *now_ms* by more than the clock's error, *clock_error_ms*."""
    return newest_ms is not None and newest_ms - now_ms > clock_error_ms


def judge_nothing(*, now_ms: int, begun_ms: int | None, within_ms: int) -> Verdict:
    """Returns the verdict on a table or operator of which nothing was ever measured.

    The verdict is UNKNOWN for *within_ms* after the topology began at *begun_ms*, then NEVER_LOADED. A topology that
    never began (None) is NEVER_LOADED at once.
    """
    is_new = begun_ms is not None and now_ms - begun_ms < within_ms
    return Verdict.UNKNOWN if is_new else Verdict.NEVER_LOADED


def judge_staleness(
    newest_ms: int | None,
    *,
    now_ms: int,
    sla: Sla,
    source: Activity | None = None,
    clock_error_ms: int = 0,
    begun_ms: int | None = None,
    judged_since_ms: int | None = None,
) -> Judgement:
    """Returns the verdict on a table by its newest visible event.

    A table is not stale when its *source* is idle: silent and read to its end. Staleness is negative when the newest
    event lies ahead of *now_ms*. If it does so by more than *clock_error_ms*, the SLA does not pass, idle or not.

    Args:
        newest_ms: newest visible event; None when the table has never had one.
        now_ms: the clock of the check.
        sla: the limits.
        source: state of the table's source; None if unknown.
        clock_error_ms: by how much the clock may be wrong.
        begun_ms: when the topology began; None if it never did. The first event is expected within the promised length
            after that.
        judged_since_ms: when a maintenance window or a time outside the calendar ended, from which staleness counts;
            None if neither ended after the newest event.
    """
    idle = source is Activity.IDLE
    if newest_ms is None:
        expected_ms = None if begun_ms is None else max(present((begun_ms, judged_since_ms)))
        within_ms = sla.promised_ms
        return Judgement(
            verdict=judge_nothing(now_ms=now_ms, begun_ms=expected_ms, within_ms=within_ms),
            staleness_ms=None,
            source_idle=idle,
            crossed_ms=never_loaded_since_ms(now_ms=now_ms, begun_ms=expected_ms, within_ms=within_ms),
        )
    staleness_ms = now_ms - max(present((newest_ms, judged_since_ms)))
    # A backlogged or unknown source is no excuse: its records may lie unread.
    verdict = Verdict.PASS if idle else judge(staleness_ms, sla)
    if is_ahead(newest_ms, now_ms=now_ms, clock_error_ms=clock_error_ms):
        verdict = Verdict.AHEAD_OF_CLOCK
    return Judgement(
        verdict=verdict,
        staleness_ms=staleness_ms,
        source_idle=idle,
        crossed_ms=None if idle else crossed_ms(staleness_ms, sla, now_ms=now_ms),
    )


@dataclass(frozen=True, kw_only=True)
class Objective:
    """An objective: at least the share `target` of all records has a latency of `threshold_ms` or less.

    Raises:
        InvalidArgument: `target` is not strictly between 0 and 1; otherwise there is no error budget.
    """

    threshold_ms: int
    target: float

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            msg = f"a target must be a share above 0 and below 1, got {self.target}; 99 % is 0.99"
            raise InvalidArgument(msg)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """State of an error budget, the share 1 − target of records.

    All attributes are None without records.

    Attributes:
        share_over: the share of records above the threshold.
        burn_rate: `share_over` ÷ the budget; at 1 the records spend the budget of their time exactly.
        remaining: the unspent share of the budget, negative when it is overspent.
    """

    share_over: float | None
    burn_rate: float | None
    remaining: float | None


def budget(objective: Objective, *, n: int, n_over: int) -> Budget:
    """Returns the error budget after *n* records, *n_over* above the threshold.

    Raises:
        InvalidArgument: not 0 ≤ n_over ≤ n.
    """
    if not 0 <= n_over <= n:
        msg = f"records over the threshold are a part of all, got {n_over} of {n}; count both over the same records"
        raise InvalidArgument(msg)
    if n == 0:
        return Budget(share_over=None, burn_rate=None, remaining=None)
    share = Fraction(n_over, n)
    # The fraction of the text: a target of 0.99 is 99/100, and not the nearest double.
    burn_rate = share / (1 - Fraction(str(objective.target)))
    return Budget(share_over=float(share), burn_rate=float(burn_rate), remaining=float(1 - burn_rate))


@dataclass(frozen=True, kw_only=True)
class BurnRate:
    """Burn rates of an objective's error budget from which on an SLA warns, and is in error.

    A burn rate is judged only over `min_records` records or more.

    Raises:
        InvalidArgument: fewer than one record is enough, a rate is not above 0, the error is at a lower one than the
            warning, or at one that is never reached: all records over the threshold burn at 1 / (1 − target).
    """

    objective: Objective
    warn_at: float
    error_at: float
    min_records: int = 1

    def __post_init__(self) -> None:
        if self.min_records < 1:
            msg = f"a burn rate needs min_records of 1 or more, got {self.min_records}; leave it out"
            raise InvalidArgument(msg)
        if not 0 < self.warn_at <= self.error_at:
            msg = f"burn rates need 0 < warn_at <= error_at, got {self.warn_at} and {self.error_at}; swap them"
            raise InvalidArgument(msg)
        highest = float(1 / (1 - Fraction(str(self.objective.target))))
        if self.error_at > highest:
            msg = f"with a target of {self.objective.target} no burn rate can exceed {highest:g}, got {self.error_at}"
            raise InvalidArgument(msg)


def judge_burn(burn_rates: Iterable[float | None], *, warn_at: float, error_at: float) -> Verdict:
    """Returns the verdict on the *burn_rates* of a long and a short window, or of more windows.

    A limit is broken when all of them reach it. The verdict is UNKNOWN when one of them is None.
    """
    # The long window proves that the breach matters, the short one that it has not ended yet.
    rates = [*burn_rates]
    measured = present(rates)
    if not rates or len(measured) < len(rates):
        return Verdict.UNKNOWN
    # The lowest rate decides, as all windows must burn.
    if min(measured) >= error_at:
        return Verdict.ERROR
    return Verdict.WARN if min(measured) >= warn_at else Verdict.PASS
