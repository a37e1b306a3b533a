"""The table `retention` of a topology file: how long rows are kept.

Lengths are ms, counted from when the file that has a row was written. Files are deleted as a whole, with their youngest
row, so that rows are kept up to a day longer. None: for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.model.settings.toml_keys import Keys
from tidemark.model.settings.value_types import LENGTH_ABOVE_0
from tidemark.model.tables.catalog import CHANGES, COMPLETENESS, DEAD_LETTERS, STATE_CHANGES, TOPOLOGY_CHANGES

FOR_EVER = "for ever"
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long rows are kept, by kind of row.

    Of `changes`, `state` and `hops` only superseded rows are deleted, by a newer one of their key or by the end of
    their window, and of a hop only those that its readers have read. `unused` are files that no table names any more.
    """

    facts_ms: int | None = 30 * DAY_MS
    set_aside_ms: int | None = 90 * DAY_MS
    changes_ms: int | None = None
    state_ms: int | None = 7 * DAY_MS
    hops_ms: int | None = 7 * DAY_MS
    sinks_ms: int | None = None
    reports_ms: int | None = None
    unused_ms: int | None = DAY_MS

    def of_stream(self, table: str) -> int | None:
        """Returns how long rows of *table*, of every stream, are kept."""
        if table == DEAD_LETTERS.name:
            return self.set_aside_ms
        # Reports and `changes` may be older than facts, and these say what they mean.
        if table in {COMPLETENESS.name, TOPOLOGY_CHANGES.name}:
            return self.reports_ms
        return {CHANGES.name: self.changes_ms, STATE_CHANGES.name: self.state_ms}.get(table, self.facts_ms)


def read_retention(file: str, content: Mapping[str, Any]) -> Retention:
    """Reads *content*, the table `retention` of *file*.

    Raises:
        InvalidSpec: it is not valid.
    """
    keys = Keys(file, "retention", content)
    usual = Retention()
    read = {
        "facts_ms": _length_ms(keys, "facts", "30 d", usual.facts_ms),
        "set_aside_ms": _length_ms(keys, "set_aside", "90 d", usual.set_aside_ms),
        "changes_ms": _length_ms(keys, "changes", "365 d", usual.changes_ms),
        "state_ms": _length_ms(keys, "state", "7 d", usual.state_ms),
        "hops_ms": _length_ms(keys, "hops", "7 d", usual.hops_ms),
        "sinks_ms": _length_ms(keys, "sinks", "365 d", usual.sinks_ms),
        "reports_ms": _length_ms(keys, "reports", "365 d", usual.reports_ms),
        "unused_ms": _length_ms(keys, "unused", "1 d", usual.unused_ms),
    }
    keys.done()
    return Retention(**read)


def _length_ms(keys: Keys, key: str, example: str, usual_ms: int | None) -> int | None:
    # `for ever` is None in the settings, and so is a default without a limit: only the key itself distinguishes them.
    form = {"anyOf": [{"const": FOR_EVER}, LENGTH_ABOVE_0]}
    if keys.text(key, example, FOR_EVER, form=form) == FOR_EVER:
        return None if key in keys.content else usual_ms
    length_ms: int = keys.duration(key, example)
    return length_ms
