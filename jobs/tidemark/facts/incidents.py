"""Queries incidents, with their state by the newest check.

Instants are timestamps in UTC.
"""

from __future__ import annotations

from collections.abc import Collection

from tidemark.facts.answers import Row, Tables
from tidemark.query.views import views

_KNOWN = "topology = $1 AND coalesce(epoch_ms({}) <= $2, true)"
_HISTORY = next(view.select for view in views() if view.name == "incident_history")
INCIDENTS = f"""
    WITH incidents AS (SELECT * FROM incidents WHERE {_KNOWN.format("changed_at")}),
         sla_results AS (SELECT * FROM sla_results WHERE {_KNOWN.format("checked_at")})
    SELECT * REPLACE (crossed_at AS broken_since),
           crossed_at IS NULL AS is_found,
           coalesce(broken_since, opened_at) AS since,
           CASE WHEN state = 'resolved' THEN state
                WHEN verdict = 'pass' THEN 'passes since ' || strftime(passes_since, '%H:%M') || ', resolves at '
                                           || strftime(resolves_at, '%H:%M') || ' if it holds'
                ELSE verdict END AS now
    FROM ({_HISTORY})
    WHERE true
"""
"""Selects the incidents of the topology $1 by all that was known at $2 (epoch ms; null: until now).

`is_found` is true if nobody knows when a limit was crossed. Then `broken_since` is null, and `since` is the instant of
the check that found the SLA broken. `now` is the state by the newest check up to $2, null without one.
"""
OPEN = "AND resolved_at IS NULL ORDER BY opened_at, incident"
NAMED = "AND coalesce(list_contains($3::VARCHAR[], incident), true) ORDER BY opened_at, incident"
NEWEST = "ORDER BY resolved_at IS NOT NULL, opened_at DESC, incident LIMIT $3"
_STATE_WORDS = {
    "error": "is broken",
    "warn": "has a warning",
    "unknown": "cannot be measured",
    "never_loaded": "was never loaded",
    "ahead_of_clock": "is ahead of the clock",
    "resolved": "is resolved",
}


def known_incidents(
    tables: Tables, topology: str, names: Collection[str] | None = None, *, at_ms: int | None = None
) -> list[Row]:
    """Returns the rows of INCIDENTS at *at_ms* (epoch ms; None is now), the oldest first.

    If *names* is not None, only incidents with these names are returned.
    """
    return tables.ask(INCIDENTS + NAMED, [topology, at_ms, None if names is None else [*names]]).objects


def open_incidents(tables: Tables, topology: str, *, at_ms: int | None = None) -> list[Row]:
    """Returns the rows of INCIDENTS that are open at *at_ms* (epoch ms; None is now)."""
    return tables.ask(INCIDENTS + OPEN, [topology, at_ms]).objects


def newest_incidents(tables: Tables, topology: str, most: int, *, at_ms: int | None = None) -> list[Row]:
    """Returns at most *most* rows of INCIDENTS at *at_ms* (epoch ms; None is now), open ones first, then the newest."""
    return tables.ask(INCIDENTS + NEWEST, [topology, at_ms, most]).objects


def state_in_words(state: str) -> str:
    """Returns the state `now` of an incident as a clause that follows the name of its SLA.

    >>> state_in_words("error"), state_in_words("passes since 12:02, resolves at 12:12 if it holds")
    ('is broken', 'passes since 12:02, resolves at 12:12 if it holds')
    """
    return _STATE_WORDS.get(state, state)
