"""Causes that keep a stream from giving results, and findings.

A finding says that a cause was seen at an operator, or at a partition of its input, with what the tables show and what
to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Self

from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import percent


class Trait(Flag):
    """What kind of cause it is: pages and incidents treat causes by these traits.

    Each cause has exactly one of FAULT, USUAL and QUIET.
    """

    FAULT = auto()
    """The stream needs attention."""
    USUAL = auto()
    """A healthy stream may give no results because of it."""
    QUIET = auto()
    """No records come in."""
    SILENCE = auto()
    """The cause explains why no more records came, and not why a record came late."""
    EVENT_TIME = auto()
    """The cause lies in event time: with processing time it could not occur."""


class Cause(str):
    """A reason why an operator gives no results: a word, with its traits and the meaning that docs/remarks.md shows.

    A cause is declared in the file that finds it; causes that several files name are declared here. The meaning is
    empty where the word is an owner of time, which docs/owners.md explains.
    """

    traits: Trait
    meaning: str

    def __new__(cls, word: str, traits: Trait, meaning: str = "") -> Self:
        """Creates a cause with a new *word*.

        Raises:
            ValueError: another cause has the word.
        """
        if word in _DECLARED:
            msg = f"{word}: two causes have this word"
            raise ValueError(msg)
        cause = super().__new__(cls, word)
        cause.traits, cause.meaning = traits, meaning
        _DECLARED[word] = cause
        return cause

    def __reduce__(self) -> tuple[Callable[[str, Trait], Cause], tuple[str, Trait]]:
        """Pickles the traits, too: by default a `str` pickles its text alone."""
        return _unpickle, (str(self), self.traits)


def _unpickle(word: str, traits: Trait) -> Cause:
    """Returns the cause that is declared as *word*; without one, a cause that is not declared."""
    if word in _DECLARED:
        return _DECLARED[word]
    # The file that declares it may be imported here later, and must find its word free.
    cause = str.__new__(Cause, word)
    cause.traits, cause.meaning = traits, ""
    return cause


_DECLARED: dict[str, Cause] = {}
"""The causes that imported files declare, by word."""


HARMLESS = Trait.QUIET | Trait.USUAL
"""A cause with one of these traits is no fault."""


def declared(word: str) -> Cause | None:
    """Returns the cause that an imported file declares as *word*; None if none does."""
    return _DECLARED.get(word)


def with_a_meaning() -> list[Cause]:
    """Returns the causes that docs/remarks.md lists, sorted by word: those of imported files, without owners of
    time.
    """
    return sorted(cause for cause in _DECLARED.values() if cause.meaning)


NEVER_STARTED = Cause(
    "never_started",
    Trait.FAULT,
    "the driver has never started, or has neither finished nor begun a batch",
)
SOURCE_QUIET = Cause(
    "source_quiet",
    Trait.QUIET | Trait.SILENCE,
    "the newest records gave results, and every source of the operator is silent",
)
BACKLOG = Cause(
    "backlog",
    Trait.FAULT,
    "records wait unread that a batch could have read, or no batch was planned for longer than the trigger",
)
BEING_READ = Cause(
    "being_read",
    Trait.USUAL,
    "the batch that runs, or the next one, reads the records",
)
CATCHING_UP = Cause(
    "catching_up",
    Trait.USUAL,
    "older records wait unread, and over the last ten batches more were read than came in: numbers, "
    "rates, and when all will be read",
)
POISON_AT_HEAD = Cause(
    "poison_at_head",
    Trait.FAULT,
    "all records of a partition after its last usable one, or of an operator's input, are quarantined",
)
ALL_FILTERED = Cause(
    "all_filtered",
    Trait.USUAL | Trait.SILENCE,
    "every record since the newest result was dropped by a condition or an inner join, was a keep-alive, "
    "or a deletion without use",
)
NOTHING_WRONG = Cause(
    "nothing_wrong",
    Trait.USUAL,
    "the newest records gave results, or an open window still gets records",
)
SET_ASIDE = Cause(
    "set_aside",
    Trait.USUAL,
    "some recent records of an operator were late or quarantined while it sent others on: how many, and why",
)
NO_REASONS = frozenset({NOTHING_WRONG, SET_ASIDE})
"""Causes of findings that explain no missing result."""
UNEXPLAINED = Cause(
    "unexplained",
    Trait.FAULT,
    "there are no results, and no other remark applies",
)
INCIDENT_OPEN = Cause(
    "incident_open",
    Trait.FAULT,
    "an SLA of the operator, of its table or of the topology broke, and its incident is not resolved",
)
_LAST = (SOURCE_QUIET, NOTHING_WRONG, SET_ASIDE)


@dataclass(frozen=True, kw_only=True)
class WhyFinding:
    """A cause that keeps *operator* from giving results, or NOTHING_WRONG.

    Attributes:
        cause: why there are no results.
        sub_topology: the sub-topology that runs the operator, None for an SLA of the whole topology.
        operator: the operator without results, or the subject of an SLA.
        seen: what the tables show.
        remedy: what to do.
        input: the input that the operator waits for, None where the cause has none.
        partition: the partition of the input, None where the cause has none.
        since_ms: when the cause began, a clock of the driver, epoch ms. The value is None if it has always been so, or
            if the beginning is not known.
        owner: who owns the time or the records that are missing, one of `account.owners`. Findings of the walk are
            remarks, which have neither an owner nor a share.
        detail: which operator, partition or stream that owner is.
        amount_ms: time beyond what is usual, ms, None if the finding is not about time.
        records: how many records the owner kept from being counted, or how many usually come if nobody counted them.
            The value is None if the finding is not about numbers of records.
        became: what became of these records, one of `account.explanation.Became`; None if `records` is.
        share: the owner's share of all that is missing, 0 to 1.
    """

    cause: Cause
    sub_topology: str | None
    operator: str
    seen: str
    remedy: str
    input: str | None = None
    partition: int | None = None
    since_ms: int | None = None
    owner: str | None = None
    detail: str | None = None
    amount_ms: int | None = None
    records: int | None = None
    became: str | None = None
    share: float | None = None

    @property
    def row(self) -> dict[str, object]:
        """The finding as a row of JSON, for programs; `since` is an ISO instant or None."""
        return {
            "cause": str(self.cause),
            "sub_topology": self.sub_topology,
            "operator": self.operator,
            "input": self.input,
            "partition": self.partition,
            "since": None if self.since_ms is None else iso(self.since_ms),
            "seen": self.seen,
            "remedy": self.remedy,
            "owner": self.owner,
            "detail": self.detail,
            "amount_ms": self.amount_ms,
            "records": self.records,
            "share": self.share,
        }

    @property
    def line(self) -> str:
        """The finding in one line for people."""
        operator = self.operator if self.input in {None, self.operator} else f"{self.operator} ← {self.input}"
        where = operator if self.partition is None else f"{operator} partition {self.partition}"
        since = "" if self.since_ms is None else f" since {iso(self.since_ms)}"
        # A single owner has all of what is missing, and needs no percentage.
        share = "" if self.share is None or self.share > 0.995 else f" ({percent(self.share)})"
        return f"{self.cause}{share}: {where}{since}: {self.seen}; {self.remedy}"


def in_order(findings: list[WhyFinding]) -> list[WhyFinding]:
    """Returns *findings* without repetitions, in their order; those that say that nothing more comes go last."""

    def rank(finding: WhyFinding) -> int:
        return _LAST.index(finding.cause) + 1 if finding.cause in _LAST else 0

    return sorted(dict.fromkeys(findings), key=rank)
