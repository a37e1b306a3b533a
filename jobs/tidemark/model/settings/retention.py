"""The table `retention` of a topology file: how long rows are kept.

Lengths are ms, counted from when the file with the row was written; None keeps rows for ever. A file is deleted as a
whole, when its youngest row is due, so that other rows are kept up to a day longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import Key, TableForm, Values, defaulted
from tidemark.model.tables.catalog import CHANGES, COMPLETENESS, DEAD_LETTERS, STATE_CHANGES, TOPOLOGY_CHANGES

FOR_EVER = "for ever"
DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long rows are kept, by kind of row.

    From `changes`, `state` and `hops` only superseded rows are deleted: rows whose key has a newer row, or whose window
    has ended. A row of a hop must also have been read by all readers. `unused` is for files that no table names any
    more.
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


def _kept(name: str, example: str, default: str, meaning: str) -> Key[int | None]:
    return defaulted(name, value_types.length_or(FOR_EVER), example=f'"{example}"', default=default, meaning=meaning)


FACTS = _kept(
    "facts",
    "30 d",
    "30 d",
    "measurements; `suppressed` (for each key the row with the latest record time stays, as `last_seen_at` of "
    "`latest_state`); `heartbeats`; `partition_batches` (the newest row of each partition stays)",
)
SET_ASIDE = _kept(
    "set_aside", "90 d", "90 d", "`dead_letters`: the rows of `late_records`, `quarantine` and `undeliverable`"
)
OLD_CHANGES = _kept(
    "changes",
    "365 d",
    FOR_EVER,
    "updates that a newer update of their key replaced, and updates of closed windows. For every other key the newest "
    "row stays, and the row with the latest record time",
)
STATE = _kept(
    "state",
    "7 d",
    "7 d",
    "the same rows of `state_changes`, the rows of deleted keys, and those of held records that were sent on",
)
HOPS = _kept(
    "hops", "7 d", "7 d", "the same rows of hops, if every reader has read them; an unread row stays at any age"
)
SINKS = _kept("sinks", "365 d", FOR_EVER, "rows of sinks that append; sinks with current rows keep all rows")
REPORTS = _kept(
    "reports",
    "365 d",
    FOR_EVER,
    "rows of batch jobs, `completeness` and `topology_changes`; those of `expectation_results` count from the newest "
    "check of their period",
)
UNUSED = _kept(
    "unused",
    "1 d",
    "1 d",
    "files that no current version of a table refers to. Earlier versions can be read for this time (in whole hours)",
)
FORM = TableForm(keys=(FACTS, SET_ASIDE, OLD_CHANGES, STATE, HOPS, SINKS, REPORTS, UNUSED))
"""The table `retention`."""


def retention_of(values: Values | None) -> Retention:
    """Returns the retention of a file whose table `retention` has *values*; None if the file has no such table."""
    if values is None:
        return Retention()
    return Retention(
        facts_ms=values[FACTS],
        set_aside_ms=values[SET_ASIDE],
        changes_ms=values[OLD_CHANGES],
        state_ms=values[STATE],
        hops_ms=values[HOPS],
        sinks_ms=values[SINKS],
        reports_ms=values[REPORTS],
        unused_ms=values[UNUSED],
    )
