"""Builds texts of topologies, and holds those that many tests share.

A text is put together from tables of operators, so that a test shows only its own keys:

>>> print(topology_of(events=source("id string", bound="3 s"), out=sink("events", table="out")))
<BLANKLINE>
name = "play"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "3 s"
max_ahead = "unlimited"
[operators.out]
kind = "sink"
input = "events"
table = "out"
<BLANKLINE>
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Keys = dict[str, Any]
"""An operator's keys in TOML, in the order of its text."""


def topology_of(head: Mapping[str, Any] | None = None, **tables: Keys) -> str:
    """Returns the text of a topology, with a table for each operator.

    *head* has the keys before the first operator; the name is `play` unless it has one.
    """
    return "\n" + _lines({"name": "play"} | dict(head or {})) + operators(**tables)


def operators(**tables: Keys) -> str:
    """Returns tables of operators, to be added to another text."""
    return "".join(f"[operators.{name}]\n{_lines(keys)}" for name, keys in tables.items())


def source(fields: str = "id string, v int", /, **keys: Any) -> Keys:
    """Returns a source of the topic `events`.

    Its fields are *fields* and a time in epoch ms. *keys* are further ones, or replace these; None removes a key.
    """
    defaults = {
        "kind": "source", "topic": "events", "fields": f"{fields}, event_time bigint", "timestamp": "event_time",
        "bound": "1 s", "max_ahead": "unlimited",
    }  # fmt: skip
    return {key: value for key, value in (defaults | keys).items() if value is not None}


def map_of(upstream: str = "events", **keys: Any) -> Keys:
    """Returns a map."""
    return {"kind": "map", "input": upstream, **keys}


def table(upstream: str = "events", **keys: Any) -> Keys:
    """Returns a table with the key `id` unless *keys* has another."""
    return {"kind": "table", "input": upstream, "key": ["id"], **keys}


def join(upstream: str, other: str, **keys: Any) -> Keys:
    """Returns a join of *upstream* with the table *other*."""
    return {"kind": "join", "input": upstream, "table": other, **keys}


def aggregate(upstream: str = "events", **keys: Any) -> Keys:
    """Returns an aggregate; of a repartition it needs no key."""
    return {"kind": "aggregate", "input": upstream, **keys}


def repartition(upstream: str = "events", **keys: Any) -> Keys:
    """Returns a repartition."""
    return {"kind": "repartition", "input": upstream, **keys}


def sink(upstream: str, **keys: Any) -> Keys:
    """Returns a sink."""
    return {"kind": "sink", "input": upstream, **keys}


def current(upstream: str, name: str, **keys: Any) -> Keys:
    """Returns a sink whose table *name* has the current rows, by `id`.

    They are merged with each batch.
    """
    return sink(upstream, table=name, **{"mode": "current", "refresh": "0 s", "key": ["id"], **keys})


def _lines(keys: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in keys.items())


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_value(of)}' for key, of in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(_value(of) for of in value)}]"
    return json.dumps(value, ensure_ascii=False)


def orders_in_files(name: str, files: str) -> str:
    """Returns a topology *name* from *files* to the table `bought`.

    It needs no broker.
    """
    place = {"topic": None, "max_ahead": None, "files": files}
    orders = source("id string", **place, fields="id string, at bigint", timestamp="at")
    return topology_of({"name": name}, orders=orders, bought=sink("orders", table="bought"))


EVENTS = topology_of(events=source())
"""A source of ids and values."""

NEWEST = EVENTS + operators(newest=table(columns=["v"]), board=current("newest", "board"))
"""The newest value of each id, in `changes` and as current rows.

Each batch merges them.
"""

BOARD = NEWEST.replace('refresh = "0 s"\n', "")
"""The same, merged once a minute."""

WINDOW_BOARD = EVENTS + operators(
    counts=aggregate(key=["id"], window={"tumbling": "10 s"}, aggregates={"n": "count(*)"}, select={"v": "n"}),
    board=sink("counts", table="board", mode="current", key=["id", "window_start"]),
)
"""The number of records of each id and window, as current rows."""

NEWEST_SENT = NEWEST + "\n" + operators(out=sink("newest", topic="out"))
"""The newest values as current rows, and in a topic."""
