"""How pages write what tables say: Jinja2 templates that escape everything, and lengths and instants for people."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from tidemark.inert import inert
from tidemark.spec.intervals import Grain, utc
from tidemark.spec.lengths import for_people

AGO = ((1_000, "s", 120_000), (60_000, "min", 7_200_000), (3_600_000, "h", 172_800_000))
"""Each unit in ms, with the age below which it reads best."""
COMMANDS = re.compile(r"`((?:tidemark|airflow) [^`]+)`")
"""Commands in remedies. Other text in backticks, such as that of a record, stays text."""
REFRESH_S = 15
"""A page that shows how things are now is asked for again so often."""
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
        "ago": ago,
        "at": utc,
        "day_and_clock": "{:%Y-%m-%d %H:%M:%S}".format,
        "percent": percent,
        "words": lambda name: str(name).replace("_", " "),
        "code": code,
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
        "report_name": lambda name: name.replace("T", " ", 1) + (":00" if len(name) == len("2026-01-31T12") else ""),
    }
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """*value*, which is markup still if it was, without what a browser would not show but obey: a turn to the left."""
    return type(value)(inert(value)) if isinstance(value, str) else value


def code(text: str) -> Markup:
    """*text* with the commands in backticks as code.

    >>> code("a < b: `tidemark why flights`")
    Markup('a &lt; b: <code>tidemark why flights</code>')
    """
    return Markup(COMMANDS.sub(r"<code>\1</code>", str(escape(text))))


def length(ms: float | None) -> str:
    """A length of time for people; a dash where it is not known."""
    return "–" if ms is None else for_people(ms)


def ago(ms: float | None) -> str:
    """How long ago something was, for people, in whole seconds, minutes, hours or days.

    >>> ago(400), ago(59_000), ago(150_000), ago(9_000_000), ago(None)
    ('now', '59 s ago', '2 min ago', '2 h ago', 'never')
    """
    if ms is None:
        return "never"
    size_ms, unit = next(((size, unit) for size, unit, below_ms in AGO if ms < below_ms), (Grain.DAY.length_ms, "d"))
    return f"{int(ms // size_ms):,} {unit} ago" if ms >= 1_000 else "now"


def percent(share: float | None) -> str:
    """A part of 1 for people; a dash where it is not known."""
    return "–" if share is None else f"{share:.0%}"
