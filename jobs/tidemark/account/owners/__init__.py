"""The owners of time, each in a file of this folder; importing the folder registers them all."""

from __future__ import annotations

from tidemark.account.owners.registry import registered
from tidemark.extensions import import_all

import_all(__name__, __path__, group="tidemark.owners")

OWNERS = registered()
"""All owners by name."""
WORK_ON_RECORDS = frozenset(name for name, owner in OWNERS.items() if owner.works_on_records)
"""The owners whose time grows with the number of records."""


def is_at_operator(cause: str | None) -> bool:
    """Returns whether the detail of a *cause* is an operator of its topology, which has a page.

    >>> [is_at_operator(cause) for cause in ("operator", "next_record", "target", "absence", None)]
    [True, True, False, False, False]
    """
    return cause in OWNERS and OWNERS[cause].is_at_operator
