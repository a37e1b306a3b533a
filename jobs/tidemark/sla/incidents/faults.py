"""Says which causes are one fault: those of one owner with the same detail, in the same stream.

A driver that is gone, starts and catches up has one owner meanwhile, `absence`, and so has what waits for it.
"""

from __future__ import annotations

from typing import TypeAlias

from tidemark.model.sla_events import AlertCause, AlertFault

Common: TypeAlias = AlertFault | str
"""What the incidents of an alert have in common: a fault, or the name of the only incident."""


def common_of(cause: AlertCause | None, name: str) -> Common:
    """Returns what incidents with *cause* have in common; without one, the *name*."""
    return name if cause is None else cause.fault
