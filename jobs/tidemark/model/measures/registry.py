"""Measures of SLAs, an open list: a file of this folder that registers a Measure is all that a new one needs.

A package of a user registers others in a module that is an entry point of the group `tidemark.measures`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidemark.extensions import OpenList
from tidemark.model.measures.limits import Limits
from tidemark.model.settings.declared_tables import Key
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.topology import Topology
from tidemark.semantics.moved import Moved

OVER_MS, LONG_OVER_MS = 600_000, DAY_MS
"""The usual `over`, and that of what happens seldom."""
OUTCOMES = "outcomes"
"""The rows of `operator_batches` that are known at the check's instant, as a table with `batch_finished_at`."""


class Need(StrEnum):
    """Facts that a measure is judged by, beside what it counts."""

    NEWEST = "newest"
    """The newest record time of its subject, a table."""
    WATERMARKS = "watermarks"
    """The watermarks of sources and streams, and whether sources are idle."""
    CLOCKS = "clocks"
    """Errors of clocks: it may lie ahead of them, where a producer's is wrong."""
    START = "start"
    """Since when the topology runs."""
    COMPLETIONS = "completions"
    """Complete intervals of tables."""
    ACCOUNTS = "accounts"
    """Whether the outcomes of each batch add up."""
    PATHS = "paths"
    """Critical paths of windows."""


class ExplainedBy(StrEnum):
    """How the account of time explains a broken promise."""

    RECORDS = "records"
    """By the ages of results that became visible."""
    OPEN_RESULT = "open_result"
    """By the oldest result that is not visible yet."""
    INTERVALS = "intervals"
    """By the intervals that were complete too late, or are not."""
    WORK = "work"
    """By the work of an operator."""
    NUMBERS = "numbers"
    """By what became of records."""
    CULPRIT = "culprit"
    """By the operator, stream or table that the check found."""
    COMMITS = "commits"
    """By the last commits of a watched table."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """What a measure counts in the time before a check, in DuckDB's SQL.

    Attributes:
        what: its name among all facts; measures that count the same share it.
        rows: what is counted: a table, or a query in brackets, in which $1 is the topology. {start} and {end} stand for
            the ends of the interval, {start_ms} and {end_ms} for the same in epoch ms. OUTCOMES is a table.
        at: the column with the instant of a row; None: *rows* is in the interval already.
        subject: the expression of the subject.
        n: the number, an aggregate.
        bucket: the expression of the bucket in which a length is counted; None: it counts no lengths.
    """

    what: str
    rows: str
    at: str | None = None
    subject: str = "operator"
    n: str = "count(*)"
    bucket: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Measure:
    """What an SLA limits.

    Attributes:
        name: its word in `slas.toml`, in the column `measure` and in alerts.
        definition: what it measures, for docs/measures.md.
        of: its subjects, for the same page.
        subjects: returns the subjects of a topology that have it.
        without_subjects: the problem and the remedy of a topology that has none.
        any_operator: whether every operator may have it, also one that is not known yet.
        limits: the form of its limits, with their keys. It decides how it is judged.
        implied_by: the key by which an SLA has it without naming it; None: none.
        moves: what it is made of, so which owners of time can move it: where a check finds the culprit, its ROWS, or
            the FIELDS of a source.
        explained: how the account of time explains it.
        needs: the facts that it is judged by.
        counts: what it counts over the length of the SLA.
        usual_over_ms: the default of `over`, in ms.
        fixed_over_ms: its length, if `over` does not decide it, in ms.
        quantile: the quantile of counted lengths that it limits; None: none.
        outcome: of a share, the column of `operator_batches` whose records are counted, an adjective.
        counted: what is counted in a sentence, a plural.
        is_of_lateness: whether it says that results come in time.
        is_excusable: whether `while_catching_up` may excuse it, because records are late then.
        passes_when_idle: whether `ignore_when_idle` may excuse it.
        of_watched: the function that measures it of a watched table by its log, as MODULE:NAME, such as those of
            `tidemark.watch.measures`; None: watched tables do not have it. Its limits are AT_LEAST or those of lengths.
    """

    name: str
    definition: str
    of: str
    subjects: Callable[[Topology], tuple[str, ...]]
    without_subjects: tuple[str, str] = ("no operator has it", "measure something else")
    any_operator: bool = False
    limits: Limits
    implied_by: Key[Any] | None = None
    moves: frozenset[Moved]
    explained: ExplainedBy = ExplainedBy.CULPRIT
    needs: frozenset[Need] = frozenset()
    counts: tuple[Count, ...] = ()
    usual_over_ms: int = OVER_MS
    fixed_over_ms: int | None = None
    quantile: float | None = None
    outcome: str | None = None
    counted: str = "records"
    is_of_lateness: bool = False
    is_excusable: bool = False
    passes_when_idle: bool = False
    of_watched: str | None = None

    @property
    def changes_without_news(self) -> bool:
        """Whether it changes as time passes, without a new fact. Critical paths are found by the hour."""
        return Need.COMPLETIONS in self.needs or (bool(self.counts) and Need.PATHS not in self.needs)

    @property
    def is_of_rows(self) -> bool:
        """Whether it needs the latency of each record, which the log of a watched table does not have."""
        return self.explained is ExplainedBy.RECORDS

    @property
    def is_latency(self) -> bool:
        """Whether it limits a quantile of the latencies of records."""
        return self.quantile is not None and self.is_of_rows

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Measure], tuple[str]]:
        """Returns how another process finds it: there is one of each name, and its functions have no names."""
        return measure_named, (self.name,)


MEASURES: OpenList[Measure] = OpenList("measure", group="tidemark.measures", package="tidemark.model.measures")
"""All measures by name."""


_COUNTS: dict[str, Count] = {}


def measure_named(name: str) -> Measure:
    """Returns the measure *name*."""
    return MEASURES[name]


def register(measure: Measure) -> Measure:
    """Adds *measure* to the list, and returns it.

    Raises:
        ValueError: another has its name, nobody whom a check finds can move it, or it counts something else under a
            name that others have.
    """
    for count in measure.counts:
        if count.what in _COUNTS and _COUNTS[count.what] != count:
            msg = f"{measure.name} counts {count.what} in another way than a measure before: use another name"
            raise ValueError(msg)
        _COUNTS[count.what] = count
    if measure.explained is ExplainedBy.CULPRIT and measure.moves not in ({Moved.ROWS}, {Moved.FIELDS}):
        msg = f"the culprit of {measure.name} is found by a check, so it moves ROWS, or the FIELDS of a source"
        raise ValueError(msg)
    return MEASURES.register(measure.name, measure)


ONLY_WATCHED = ("only watched tables have it", "write the SLA into the table [watch.NAME], about a table of a set")
"""The problem and the remedy of topologies with streams, for a measure of watched tables."""


def no_subject(_: Topology) -> tuple[str, ...]:
    """Returns nothing: no topology with streams has a measure of watched tables."""
    return ()


def every_operator(topology: Topology) -> tuple[str, ...]:
    """Returns the names of all operators of *topology*."""
    return tuple(topology.operators)
