"""Says which causes are one fault: those of one owner with the same detail, in the same stream.

A driver that is gone, starts and catches up has one owner meanwhile, `absence`, and so has what waits for it. Whether
the records of one partition come late, cannot be used or do not come at all, whoever writes them has to look: its
owners have one fault.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tidemark.account.owners.partition import PARTITION
from tidemark.account.owners.registry import OWNERS
from tidemark.model.sla_events import AlertCause


class AlertFault(NamedTuple):
    """What two causes have in common if they are one fault of a topology."""

    owner: str
    detail: str | None
    stream: str | None


Common: TypeAlias = AlertFault | str
"""What the incidents of an alert have in common: a fault, or the name of the only incident."""


def fault_of(cause: AlertCause) -> AlertFault:
    """Returns what *cause* has in common with others of the same fault.

    >>> fault_of(AlertCause(owner="producer", detail="orders/1")) == fault_of(
    ...     AlertCause(owner="next_record", detail="orders/1")
    ... )
    True
    """
    is_of_partition = cause.owner in OWNERS and OWNERS[cause.owner].detail == OWNERS[PARTITION].detail
    return AlertFault(PARTITION if is_of_partition else cause.owner, cause.detail, cause.stream)


def common_of(cause: AlertCause | None, name: str) -> Common:
    """Returns what incidents with *cause* have in common; without one, the *name*."""
    return name if cause is None else fault_of(cause)
