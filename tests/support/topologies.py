"""Topology texts that many tests share."""

from __future__ import annotations

EVENTS = """
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, v int, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
"""
"""A source of ids and values."""

BOARD = f"""{EVENTS}[operators.newest]
kind = "table"
input = "events"
key = ["id"]
columns = ["v"]
[operators.board]
kind = "sink"
input = "newest"
table = "board"
mode = "current"
key = ["id"]
"""
"""The newest value of each id, in `changes` and as current rows.

Current rows are merged once a minute.
"""

NEWEST = BOARD.replace('mode = "current"\n', 'mode = "current"\nrefresh = "0 s"\n')
"""The same, merged with each batch."""

WINDOW_BOARD = f"""{EVENTS}[operators.counts]
kind = "aggregate"
input = "events"
key = ["id"]
window = {{ tumbling = "10 s" }}
aggregates = {{ n = "count(*)" }}
select = {{ v = "n" }}
[operators.board]
kind = "sink"
input = "counts"
table = "board"
mode = "current"
key = ["id", "window_start"]
"""
"""The number of records of each id and window, as current rows."""

NEWEST_SENT = f"""{NEWEST}
[operators.out]
kind = "sink"
input = "newest"
topic = "out"
"""
"""The same, and in a topic."""
