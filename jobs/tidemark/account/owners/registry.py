"""Owners of time, an open list: a file of this folder that registers an Owner is all that a new one needs.

A package of a user registers others in a module that is an entry point of the group `tidemark.owners`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.extensions import OpenList
from tidemark.semantics.moved import Moved

OF_TIME = frozenset({Moved.AGE, Moved.NUMBER})
"""What an owner moves in whose time no result becomes visible: results are older, and until then fewer."""
OF_RECORDS = frozenset({Moved.AGE, Moved.NUMBER, Moved.REFUSAL, Moved.FIELDS})
"""What an owner moves that sends records: when they come, how many, and with what in them."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who owns a part of an age.

    Attributes:
        name: its word in the column `owner`.
        parent: the owner that it is a part of, in the tree in which a cause is looked for; None for one that stands
            alone.
        detail: what the column `detail` names. "the operator", "the source", "the sink" and "SOURCE/PARTITION" have a
            page.
        says: what it did, as the beginning of a sentence, with the places {detail}, {stream} and {amount}.
        proof: the facts without which its time is `unknown`.
        remedy: what shortens its time, with the setting or the command that does.
        moves: what it can move (`account.moves`).
        has_time: False for an owner that only holds others together, and for which no part is booked.
        works_on_records: whether its time grows with the number of records, so that the time spent on more records
            than usual belongs to what made them wait.
    """

    name: str
    parent: str | None = None
    detail: str
    says: str
    proof: str
    remedy: str
    moves: frozenset[Moved] = OF_TIME
    has_time: bool = True
    works_on_records: bool = False

    @property
    def is_at_operator(self) -> bool:
        """Whether its detail is an operator of the topology, such as a source, perhaps with a partition."""
        named = self.detail.partition(";")[0].rpartition(", ")[2]
        return named in {"the operator", "the source", "the sink", "SOURCE/PARTITION"}


OWNERS: OpenList[Owner] = OpenList("owner", group="tidemark.owners", package="tidemark.account.owners")
"""All owners by name."""


def register(owner: Owner) -> str:
    """Adds *owner* to the list, and returns its name; ValueError if another has it."""
    return OWNERS.register(owner.name, owner).name


def is_at_operator(cause: str | None) -> bool:
    """Returns whether the detail of a *cause* is an operator of its topology, which has a page.

    >>> [is_at_operator(cause) for cause in ("operator", "next_record", "target", "absence", None)]
    [True, True, False, False, False]
    """
    return cause is not None and cause in OWNERS and OWNERS[cause].is_at_operator


def work_on_records() -> list[str]:
    """Returns the owners whose time grows with the number of records."""
    return [name for name, owner in OWNERS.items() if owner.works_on_records]
