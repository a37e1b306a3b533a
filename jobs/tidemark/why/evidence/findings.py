"""Causes that keep a stream from giving results, and findings of them.

A finding is one row per cause at a place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Self

from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import percent


class Trait(Flag):
    """Traits of a cause, by which pages and incidents use it.

    Each cause has one of the first three.
    """

    FAULT = auto()
    """The stream needs attention."""
    USUAL = auto()
    """A healthy stream has no results for it."""
    QUIET = auto()
    """No records come in."""
    SILENCE = auto()
    """It explains why no more records came.

    It does not explain why a record came late.
    """
    EVENT_TIME = auto()
    """Processing time would avoid it."""


class Cause(str):
    """A reason why an operator gives no results: its word, its traits, and its meaning for docs/remarks.md.

    The file that finds it declares it; those that several files name are here. The meaning is empty where the cause is
    an owner of time, of which docs/owners.md tells.
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
        """Pickles word and traits; the default would pickle the word alone."""
        return _unpickle, (str(self), self.traits)


def _unpickle(word: str, traits: Trait) -> Cause:
    """Returns the declared cause of *word*; else one that is not declared."""
    if word in _DECLARED:
        return _DECLARED[word]
    # The file that declares it may be imported here later, and must find its word free.
    cause = str.__new__(Cause, word)
    cause.traits, cause.meaning = traits, ""
    return cause


_DECLARED: dict[str, Cause] = {}
"""The causes of all files that were imported, by word."""


HARMLESS = Trait.QUIET | Trait.USUAL
"""Traits of causes that are no fault."""


def declared(word: str) -> Cause | None:
    """Returns the cause of *word*, if an imported file declares it."""
    return _DECLARED.get(word)


def with_a_meaning() -> list[Cause]:
    """Returns the causes of all imported files, except owners of time, by word."""
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
    "the newest records gave results, or an open window still gets records; numbers of recent records "
    "that were late or quarantined",
)
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
_LAST = (SOURCE_QUIET, NOTHING_WRONG)


@dataclass(frozen=True, kw_only=True)
class WhyFinding:
    """A cause that keeps *operator* from giving results, or NOTHING_WRONG.

    Attributes:
        cause: the cause.
        sub_topology: of the operator; None: an SLA of the whole topology.
        operator: the operator without results, or the subject of an SLA.
        seen: what the tables show.
        remedy: what to do.
        input: the operator that it waits for; None where the cause has none.
        partition: the partition of the input; None where the cause has none.
        since_ms: when it began, a clock of the driver, epoch ms; None when it has always been so, or that is not known.
        owner: who owns the time or the records that are missing, of `account.owners`; None: this is a remark, which
            has no share of them either.
        detail: which one of these owners.
        amount_ms: time beyond what is usual, ms; None: it is not about time.
        records: how many records it kept from being counted; where nobody counted any, how many usually come. None:
            it is not about numbers of records.
        became: what became of these records, of `account.explanation.Became`; None as for `records`.
        share: of all that is missing, 0 to 1.
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
        """The finding for programs; `since` is an ISO instant or None."""
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
        place = self.operator if self.input in {None, self.operator} else f"{self.operator} ← {self.input}"
        where = place if self.partition is None else f"{place} partition {self.partition}"
        since = "" if self.since_ms is None else f" since {iso(self.since_ms)}"
        # One owner that has all of what is missing needs no share.
        part = "" if self.share is None or self.share > 0.995 else f" ({percent(self.share)})"
        return f"{self.cause}{part}: {where}{since}: {self.seen}; {self.remedy}"


def in_order(findings: list[WhyFinding]) -> list[WhyFinding]:
    """Returns *findings* once each, in order, but ends of records last."""
    # Findings that say that there are no more records come after those of a wait.
    return sorted(dict.fromkeys(findings), key=lambda each: _LAST.index(each.cause) + 1 if each.cause in _LAST else 0)
