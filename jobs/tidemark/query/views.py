"""The views of a warehouse, and which of them a query uses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tidemark.graph import in_order
from tidemark.storage.warehouse import WORD

VIEWS = Path(__file__).parents[1] / "views"


@dataclass(frozen=True)
class View:
    """A view: its name, the meaning of a row, and its SELECT.

    Spark SQL and DuckDB both read the SELECT, which may use functions of Spark that `query.sql` defines in DuckDB.
    """

    name: str
    row: str
    select: str


@cache
def views() -> tuple[View, ...]:
    """Returns all views, each after those that it reads, by name."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(VIEWS.glob("*.sql"))}
    by_name = {name: _view(name, text) for name, text in texts.items()}
    reads: dict[str, list[str]] = {}
    for name, view in by_name.items():
        # Its own name among its words, that of a column for example, is no cycle.
        reads[name] = sorted(by_name.keys() & set(re.findall(r"\w+", view.select)) - {name})
    return tuple(by_name[name] for name in in_order(reads))


def names_used_in(text: str, names: Collection[str], views: Iterable[View]) -> list[str]:
    """Returns the tables and views among *names* that the SQL *text* uses, directly or through other *views*.

    Tables come first, and each view after the views that it reads. *views* are in that order, too.
    """
    words, last_first = _words(text), []
    # Backwards: each view adds the words of its SELECT before the views that it may read are looked at.
    for view in reversed([*views]):
        if view.name.lower() in words:
            last_first.append(view.name)
            words |= _words(view.select)
    quoted = text.replace('""', '"').lower()  # a folder may have any name, and a query names it in quotes
    named = {name for name in names if name.lower() in (words if WORD.fullmatch(name) else quoted)}
    return [*sorted(named - {*last_first}), *reversed(last_first)]


def _words(text: str) -> set[str]:
    return {word.lower() for word in WORD.findall(text)}


def _view(name: str, text: str) -> View:
    """Returns the view *name* of a file: comment lines of *text* with the meaning of a row, then the SELECT."""
    match = re.match(r"(-- .*\n)*", text)
    comment = match.group() if match else ""
    return View(name, comment.replace("-- ", "").replace("\n", " ").strip(), text.removeprefix(comment).strip())
