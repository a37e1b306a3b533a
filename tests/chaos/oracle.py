"""Declares the topology `chaos.toml` for the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from support.oracle import Aggregate, Hop, Map, Oracle, Repartition, Sink, Source, Table
from support.oracle_parts import Batch, Fields, Handed, Message, Place, typed

BOUND_MS, NEVER_IDLE_MS = 1_000, 10**15
TYPES = {"n": int, "team": str, "score": int, "event_time": int}


def players_of(messages: Mapping[Place, Message], batches: Iterable[Batch]) -> Oracle:
    """Computes the sub-topology `players` after *batches* of *messages*."""
    operators = [
        Source(
            name="events",
            parse=fields_of,
            messages=messages,
            bound_ms=BOUND_MS,
            idle_after_ms=NEVER_IDLE_MS,
            late_after_ms=0,
        ),
        Sink(name="seen", input="events", key=("player",)),
        Map(
            name="scored",
            input="events",
            select=lambda event: {"player": event["player"], "team": event["team"], "points": event["score"] * 10},
            where=lambda event: event["score"] is not None,
        ),
        Table(name="newest", input="scored", key="player", columns=("team", "points")),
        Sink(name="board", input="newest", key=("player",)),
        Sink(name="news", input="newest", key=("player",)),
        Repartition(name="by_team", input="newest", id="player", key=("team",), columns=("points",)),
    ]
    return Oracle(operators, batches)


def team(players: list[Fields]) -> Fields:
    points = sum(player["points"] for player in players)
    return {"members": len(players), "level": "high" if points >= 300 else "some" if points >= 150 else "low"}


def teams_of(players: Oracle, handed: Mapping[int, Sequence[Handed]], batches: Iterable[Batch]) -> Oracle:
    """Computes `teams` after *batches* of rows *handed* on by `players`."""
    operators = [
        Hop(name="by_team_source", handed=handed, watermarks=players.watermarks),
        Aggregate(name="totals", input="by_team_source", key=("team",), result=team),
        Sink(name="team_board", input="totals", key=("team",)),
    ]
    return Oracle(operators, batches)


def fields_of(message: Message, newest_ms: int | None) -> Fields | str:
    """Returns a record's fields and player, or the reason for rejection.

    A record without a value deletes its player, at *newest_ms*, the newest time before it in its partition. It has no
    other field.
    """
    if message.key is None:
        return "null_key"
    player = {"player": message.key.decode()}
    if message.value is None:
        return "missing_timestamp" if newest_ms is None else {**player, "deleted": True, "event_time": newest_ms}
    found = typed(message.value, TYPES)
    return found if isinstance(found, str) else {**player, **found}
