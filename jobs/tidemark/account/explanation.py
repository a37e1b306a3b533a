"""What a cause is told with: one form for every surface.

An explanation says how many results broke a promise and lists the leaves of the owners' trees that own their excess.
What a page, an alert or a command adds is wording and layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LEAST_SHARE = 0.1
"""What is named has at least this share of the whole excess."""


class Answer(StrEnum):
    """What follows from the account of the results that broke a promise."""

    EXPLAINED = "explained"
    """Leaves own the excess."""
    AS_USUAL = "as usual"
    """As many results broke the promise in the history before: nobody is named."""
    CANNOT_BE_KEPT = "cannot be kept"
    """What is expected of the parts alone exceeds the limit: the leaf is the largest of them."""
    KEPT = "kept"
    """No result broke the promise."""
    NOT_KNOWN = "not known"
    """No result that broke it is known, or nothing has an excess."""


class Became(StrEnum):
    """What became of records that did not come through."""

    NOT_PRODUCED = "not produced"
    """They usually come, and did not."""
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
        detail: which one, as that owner's `detail` says.
        stream: whose time it was; None: it was spent outside of streams.
        amount_ms: the excess of one event, or the median of a lasting fault, ms. None: it is not about time.
        largest_ms: the largest excess in one result, ms; of late records the age of the oldest one when it arrived.
        usual_ms: what was expected of it in a result, ms.
        records: how many records it kept from being counted. None: it is not about numbers of records.
        is_estimate: nobody counted *records*: so many usually come in such a time.
        usual_records: how many that usually are.
        share: of the whole excess, 0 to 1.
        touched: results that broke the promise, and of whose excess it has a part.
        since_ms: when it began, epoch ms.
        became: what became of the records; None: it is not about numbers of records.
        partition: SOURCE/PARTITION of the records; None: of several, or it is not about numbers of records.
        key: the key that most of the records have; None: it is not known, or none stands out.
        reason: why records were refused, with the field; None: they were not.
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
    """Whose return to what is expected would keep the promise: a node of the owners' trees.

    Attributes:
        owner: one of `account.owners`; of several leaves the node that holds them together.
        detail: which one.
        explained: the share of the broken results that its return would keep, with the causes before it, 0 to 1.
    """

    owner: str
    detail: str
    explained: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a promise is broken.

    Attributes:
        answer: what follows.
        causes: at most three, the one that keeps most results first.
        leaves: at least a tenth of the whole excess each, the largest first.
        explained: the share of *broken* that would be kept with the causes back at what is expected of them, 0 to 1.
        broken: results that broke the promise; for a number of records, the records that are missing or too many.
        is_of_batches: the results are batches in which an operator worked. The promise is judged by windows.
        results: all results that were judged with them.
        usual_share: of results that broke it in the history, 0 to 1; None: there is no history.
        has_history: False: what is expected is what the file says, or 0.
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
