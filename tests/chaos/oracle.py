"""Recomputes the results of `chaos.toml` from Kafka's records in plain Python.

As `streaming/oracle.py`: standard library only, one record after the other, and of the engine's tables `batches` alone.
A class for each sub-topology. Instants are epoch ms, UTC; texts are JSON as the tables have it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streaming.oracle_parts import Batch, EmitOnChange, Fields, Handed, Late, Message, Place, SourceTime, text, typed

BOUND_MS, NEVER_IDLE_MS = 1_000, 10**15
TYPES = {"n": int, "team": str, "score": int, "event_time": int}

Counts = dict[str, Counter[str]]
"""Updates by outcome, per operator."""


class Players:
    """The sub-topology `players` after *batches* of *messages*."""

    def __init__(self, messages: Mapping[Place, Message], batches: Iterable[Batch]) -> None:
        self._log = messages
        self._newest_ms: dict[int, int] = {}  # by partition: among the records read so far
        self._time = SourceTime(BOUND_MS, NEVER_IDLE_MS)
        self.outcomes: dict[int, Counts] = {}
        self.quarantined: list[Place] = []
        self.late: list[Late] = []
        self.seen: list[Place] = []
        self.newest = EmitOnChange()
        self.skipped: list[tuple[str, Place]] = []
        self.by_team = EmitOnChange()
        self.handed: dict[int, list[Handed]] = {}  # by batch
        for batch in batches:
            self._run(batch)

    def _run(self, batch: Batch) -> None:
        self._count: Counts = defaultdict(Counter)
        self._hop: list[Handed] = []
        for read in sorted(batch.reads):
            timestamps_ms = [at_ms for place in read.places() if (at_ms := self._record(place)) is not None]
            self._time.listen(read, timestamps_ms, batch.decided_at_ms)
        self._time.move()
        self.outcomes[batch.batch_id], self.handed[batch.batch_id] = self._count, self._hop

    def _record(self, place: Place) -> int | None:
        """Processes the record at *place* and returns its time.

        None: it cannot be used.
        """
        count, fields = self._count["events"], fields_of(self._log[place], self._newest_ms.get(place.partition))
        count["records_in"] += 1
        if fields is None:
            self.quarantined.append(place)
            count["quarantined"] += 1
            return None
        timestamp_ms: int = fields["event_time"]
        self._newest_ms[place.partition] = max(timestamp_ms, self._newest_ms.get(place.partition, timestamp_ms))
        watermark_ms = self._time.watermark_ms
        if watermark_ms is not None and timestamp_ms <= watermark_ms:
            self.late.append(Late(place, timestamp_ms, watermark_ms))
            count["late"] += 1
            return timestamp_ms
        count["passed"] += 1
        self.seen.append(place)
        self._count["seen"].update(("records_in", "passed"))
        self._scored(place, fields)
        return timestamp_ms

    def _scored(self, place: Place, fields: Fields) -> None:
        deletes = "team" not in fields
        filtered = not deletes and fields["score"] is None
        self._count["scored"].update(("records_in", "filtered" if filtered else "passed"))
        if filtered:
            return
        value = None if deletes else {"team": fields["team"], "points": fields["score"] * 10}
        emits = self.newest.offer(fields["player"], value and text(value), fields["event_time"], place)
        self._count["newest"].update(("records_in", "emitted" if emits else "suppressed"))
        if not emits:
            self.skipped.append((fields["player"], place))
            return
        for sink in ("board", "news"):
            self._count[sink].update(("records_in", "passed"))
        self._by_team(place, fields["player"], value, fields["event_time"])

    def _by_team(self, place: Place, player: str, value: Fields | None, timestamp_ms: int) -> None:
        before, _ = self.by_team.stored.get(player, (None, None))
        emits = self.by_team.offer(player, value and text(value), timestamp_ms, place)
        self._count["by_team"].update(("records_in", "emitted" if emits else "suppressed"))
        if not emits:
            return
        old = None if before is None else json.loads(before)
        is_another = old is not None and (value is None or value["team"] != old["team"])
        rows = [(old["team"], old, None)] if is_another else []
        if value is not None:
            rows.append((value["team"], None if is_another else old, value))
        self._hop += (Handed(*row, timestamp_ms, place.partition, place.offset) for row in rows)
        self._count["by_team"]["fan_out"] += len(rows)


@dataclass
class Team:
    """Number and points of the players of a team."""

    n: int = 0
    points: int = 0
    newest_ms: int = 0

    def add(self, value: Fields | None, sign: int) -> None:
        if value is not None:
            self.n += sign
            self.points += sign * value["points"]

    def level(self) -> str:
        return "high" if self.points >= 300 else "some" if self.points >= 150 else "low"


class Teams:
    """Computes `teams` after *batches* of rows *handed* on by `players`."""

    def __init__(self, handed: Mapping[int, Iterable[Handed]], batches: Iterable[Batch]) -> None:
        self.outcomes: dict[int, Counts] = {}
        self.totals = EmitOnChange("value_only")
        self.teams: dict[str, Team] = defaultdict(Team)
        for batch in batches:
            count: Counts = defaultdict(Counter)
            (read,) = batch.reads
            for number in range(read.from_offset, read.until_offset):
                for row in handed.get(number, ()):
                    self._add(row, count)
            self.outcomes[batch.batch_id] = count

    def _add(self, row: Handed, count: Counts) -> None:
        team = self.teams[row.key]
        team.add(row.old, -1)
        team.add(row.new, +1)
        team.newest_ms = max(team.newest_ms, row.timestamp_ms)
        value = text({"members": team.n, "level": team.level()})
        emits = self.totals.offer(row.key, value, team.newest_ms, Place("", row.partition, row.offset))
        count["by_team_source"].update(("records_in", "passed"))
        count["totals"].update(("records_in", "emitted" if emits else "suppressed"))
        if emits:
            count["team_board"].update(("records_in", "passed"))


def fields_of(message: Message, newest_ms: int | None) -> Fields | None:
    """Returns a record's fields with Kafka's key as player; None if unusable.

    A record without a value deletes its player, at *newest_ms*, the newest time before it in its partition. It has no
    other field.
    """
    if message.key is None:
        return None
    player = {"player": message.key.decode()}
    if message.value is None:
        return None if newest_ms is None else {**player, "event_time": newest_ms}
    found = typed(message.value, TYPES)
    return None if isinstance(found, str) else {**player, **found}
