"""Ends a driver at a named step of its batch."""

from __future__ import annotations

from collections.abc import Callable


class Crash(Exception):
    """The driver is gone."""


def crash_at(step: str) -> Callable[[str], None]:
    """Ends a driver when it reaches *step*."""

    def reached(name: str) -> None:
        if name == step:
            raise Crash(step)

    return reached
