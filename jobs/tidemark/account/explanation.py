"""The answer to "why is this promise broken?", in one form for pages, alerts and commands.

An explanation says how many results broke the promise, and lists the owners of the time or the records beyond what is
usual. Owners form trees: a partition is below its topic, an operator below its driver. Those at the ends are the
leaves. Pages, alerts and commands add only wording and layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LEAST_SHARE = 0.1
"""An owner is named if it has at least this share of the whole excess."""


class Answer(StrEnum):
    """What the account of the broken results says about their cause."""

    EXPLAINED = "explained"
    """Owners with an excess are found; the leaves name them."""
    AS_USUAL = "as usual"
    """As many results broke the promise in the history before: nobody is named."""
    CANNOT_BE_KEPT = "cannot be kept"
    """The lengths that are expected exceed the limit by themselves; the leaf is the owner of the longest one."""
    KEPT = "kept"
    """No result broke the promise."""
    NOT_KNOWN = "not known"
    """No broken result is known, or no owner has an excess."""


class Became(StrEnum):
    """What became of records that did not come through."""

    NOT_PRODUCED = "not produced"
    """The producers usually send them, and did not."""
    UNREAD = "unread"
    QUARANTINED = "quarantined"
    LATE = "late"
    FILTERED = "filtered"
    SUPPRESSED = "suppressed"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"
    HELD = "held"


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """An owner with its excess over what is expected of it.

    Attributes:
        owner: one of `account.owners`.
        detail: which operator, partition or stream the owner is; the file of the owner says which of these it has.
        stream: the stream whose time it was, None for time that was spent outside of streams.
        amount_ms: the excess of one event, or the median of a lasting fault, ms; None if the leaf is about records.
        largest_ms: the largest excess in one result, ms. For late records it is the age of the oldest when it arrived.
        usual_ms: the time that was expected of the owner in a result, ms.
        records: how many records the owner kept from being counted, None if the leaf is about time.
        is_estimate: nobody counted `records`; so many usually come in such a time.
        usual_records: how many records the owner usually keeps from being counted.
        share: the owner's share of the whole excess, 0 to 1.
        touched: number of broken results in which the owner has a part of the excess.
        since_ms: when the excess began, epoch ms.
        became: what became of the records, None if the leaf is about time.
        partition: SOURCE/PARTITION of the records; None for several partitions, or if the leaf is about time.
        key: the key of most of the records; None if it is not known, or if no key stands out.
        reason: why records were quarantined, with the field; None if they were not.
    """

    owner: str
    detail: str
    stream: str | None = None
    amount_ms: int | None = None
    largest_ms: int | None = None
    usual_ms: int | None = None
    records: int | None = None
    is_estimate: bool = False
    usual_records: int | None = None
    share: float = 1.0
    touched: int = 0
    since_ms: int | None = None
    became: Became | None = None
    partition: str | None = None
    key: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class CausingOwner:
    """A cause: if this owner took the time that is expected of it, broken results would keep the promise.

    Attributes:
        owner: one of `account.owners`. If several leaves share the blame, it is the node above them.
        detail: which operator, partition or stream the owner is.
        explained: the share of the broken results that would be kept if this owner, and the causes before it, took the
            expected time, 0 to 1.
    """

    owner: str
    detail: str
    explained: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a promise is broken.

    Attributes:
        answer: what kind of answer it is.
        causes: at most three causes, the one that would keep most results first.
        leaves: the owners with at least a tenth of the whole excess, the largest first.
        explained: the share of the broken results that would be kept without the excess of the causes, 0 to 1.
        broken: number of broken results. For a promise about records, the records that are missing or too many.
        is_of_batches: results are batches in which an operator worked, although the promise is judged by windows.
        results: number of all results that were judged.
        usual_share: the share of results that broke the promise in the history, 0 to 1; None without a history.
        has_history: earlier results say what is expected; otherwise the settings in the file do, or it is 0.
    """

    answer: Answer
    causes: tuple[CausingOwner, ...] = ()
    leaves: tuple[Leaf, ...] = ()
    explained: float = 0.0
    broken: int = 0
    results: int = 0
    usual_share: float | None = None
    has_history: bool = True
    is_of_batches: bool = False
