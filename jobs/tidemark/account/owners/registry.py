"""Owners of time, an open list: to add an owner, add a file to this folder that registers it.

A package of yours can register more, in a module that is an entry point of the group `tidemark.owners`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.extensions import OpenList
from tidemark.semantics.moved import Moved

OF_TIME = frozenset({Moved.AGE, Moved.NUMBER})
"""What an owner moves by taking time: results become visible later, and until then there are fewer."""
OF_RECORDS = frozenset({Moved.AGE, Moved.NUMBER, Moved.REFUSAL, Moved.FIELDS})
"""What an owner moves by sending records: when they come, how many, and what is in them."""
AHEAD, NOT_COUNTED = "ahead", "not counted"
"""Deeds that have a remedy of their own, beside what became of records (`account.explanation.Became`): records whose
event time lies in the future, and records that were not counted although it is not told what became of them."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who can own a part of the age of a result.

    Attributes:
        name: the word in the column `owner`.
        parent: the owner above it in the tree in which a cause is looked for; None if it stands alone.
        detail: what the column `detail` names. "the operator", "the source", "the sink" and "SOURCE/PARTITION" have a
            page.
        details: what people read in place of a detail that is a word of Tidemark's own.
        says: what the owner did, as a clause with the fields {detail}, {stream} and {amount}.
        says_without_history: the same clause where nobody knows what is usual; None where `says` claims nothing of it.
        proof: the facts that show its time; without them that time is `unknown`.
        remedy: what shortens its time, with the setting or the command. The fields {topology}, {stream} and {operator}
            make its commands complete.
        remedies: what helps instead, by what became of the owner's records, or by one of the deeds above.
        phases: the phases of Spark in a query of a team's own job whose time is the owner's, and what Spark does
            there. Such a phase is the detail in place of what `detail` says.
        remedy_of_phase: what shortens the time of such a phase.
        moves: the kinds of measures that it can be blamed for (`account.moves`).
        has_time: False for an owner that never gets time itself, and only stands above others in the tree.
        works_on_records: whether its time grows with the number of records. If so, the time that it spends on more
            records than usual belongs to the owner that made these records wait.
    """

    name: str
    parent: str | None = None
    detail: str
    says: str
    proof: str
    remedy: str
    moves: frozenset[Moved] = OF_TIME
    has_time: bool = True
    says_without_history: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    phases: Mapping[str, str] = field(default_factory=dict)
    remedy_of_phase: str = (
        "`tidemark path {topology}` shows the work of each phase; a query whose batches are smaller, or a driver with "
        "more cores, is done sooner"
    )
    works_on_records: bool = False

    @property
    def is_at_operator(self) -> bool:
        """Whether the detail names an operator of the topology, such as a source, perhaps with a partition."""
        named = self.detail.partition(";")[0].rpartition(", ")[2]
        return named in {"the operator", "the source", "the sink", "SOURCE/PARTITION"}


OWNERS: OpenList[Owner] = OpenList("owner", group="tidemark.owners", package="tidemark.account.owners")
"""All owners by name."""


def register(owner: Owner) -> str:
    """Adds *owner* to the list, and returns its name.

    Raises:
        ValueError: another owner has that name.
    """
    return OWNERS.register(owner.name, owner).name


def is_at_operator(cause: str | None, detail: str | None = None) -> bool:
    """Returns whether the *detail* of a *cause* is an operator of its topology, which has a page.

    >>> [is_at_operator(cause) for cause in ("operator", "next_record", "target", "absence", None)]
    [True, True, False, False, False]
    >>> is_at_operator("operator", "addBatch")
    False
    """
    return cause is not None and cause in OWNERS and OWNERS[cause].is_at_operator and detail not in OWNERS[cause].phases


def work_on_records() -> list[str]:
    """Returns the owners whose time grows with the number of records."""
    return [name for name, owner in OWNERS.items() if owner.works_on_records]
