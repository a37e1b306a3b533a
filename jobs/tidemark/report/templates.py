"""How pages write what tables say: Jinja2 templates that escape everything, and lengths and instants for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from tidemark.inert import inert
from tidemark.spec.intervals import utc

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""What a page may do: nothing but look like something."""


def template(name: str) -> Template:
    """The template *name*, `room/file`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "n": "{:,}".format,
        "ms": length,
        "at": utc,
        "day_and_clock": "{:%Y-%m-%d %H:%M:%S}".format,
        "percent": percent,
    }
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """*value*, which is markup still if it was, without what a browser would not show but obey: a turn to the left."""
    return type(value)(inert(value)) if isinstance(value, str) else value


def length(ms: float | None) -> str:
    """A length of time for people.

    >>> length(431), length(6_237.5), length(200_000), length(None)
    ('431 ms', '6.24 s', '3.33 min', '–')
    """
    if ms is None:
        return "–"
    if abs(ms) < 1_000:
        return f"{ms:,.0f} ms"
    return f"{ms / 1_000:,.2f} s" if abs(ms) < 120_000 else f"{ms / 60_000:,.2f} min"


def percent(share: float | None) -> str:
    """A part of 1 for people; a dash where it is not known."""
    return "–" if share is None else f"{share:.0%}"
