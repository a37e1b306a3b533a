"""Laws of all tables once drivers have processed all records.

They must hold whatever happened to the drivers.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from typing import Any

from chaos.feed import TOPIC
from chaos.oracle import players_of, teams_of
from chaos.stage import TOPOLOGY, Stage
from streaming.drivers import Row, batches_of, in_kafka, reads_of, rows_of
from streaming.laws import (
    ONE_ROW_PER,
    check_accounting,
    check_never_back,
    check_read_once,
    check_suppressed,
    counted,
    late_of,
    outcomes_of,
    skips_of,
    updates_of,
)

from support.oracle_parts import Batch, Handed, Message, Place


class Left:
    """The tables of the drivers so far, and the oracle's results."""

    def __init__(self, stage: Stage) -> None:
        self.acknowledged = [(r.partition, r.key, r.value, r.timestamp_ms) for r in stage.flow.acknowledged]
        self.events = {message.place: message for message in in_kafka(stage.address, TOPIC)}
        self.rows = cache(lambda sub, table: rows_of(stage.warehouse, TOPOLOGY, sub, table))
        self.news: list[Message] = in_kafka(stage.address, "news")
        self.players = players_of(self.events, self._batches("players"))
        self._is_one = stage.shards == 1
        handed = self.players["by_team"].handed if self._is_one else self._handed()
        self.teams = teams_of(self.players, handed, self._batches("teams"))

    def _batches(self, sub: str) -> list[Batch]:
        return batches_of(self.rows(sub, "batches"), self.rows(sub, "partition_batches"))

    def in_order(self, found: list[Any], expected: list[Any], *key: int) -> None:
        """Fails unless both are equal.

        In shards the order is that of each key, which these fields have.
        """
        if not self._is_one:
            found, expected = (sorted(rows, key=lambda row: [str(row[at]) for at in key]) for rows in (found, expected))
        _in_order(found, expected)

    def _handed(self) -> dict[int, list[Handed]]:
        """Returns hop rows by batch, in order.

        Several players have no common order.
        """
        found = defaultdict(list)
        for batch_id, *row in _rows_of_hop(self):
            found[batch_id].append(Handed(*row))
        return found


def broken(left: Left) -> list[str]:
    """Each law that does not hold, and where."""
    found = []
    for law in LAWS:
        try:
            law(left)
        except Exception as error:  # what a law trips over is no better than what it denies
            found.append(f"     not so: {law.__doc__} {type(error).__name__}: {str(error)[:1_000]}")
    return found


def _in_kafka(left: Left) -> None:
    """Kafka has every record that it acknowledged."""
    kept = Counter((place.partition, m.key, m.value, m.timestamp_ms) for place, m in left.events.items())
    lost = list((Counter(left.acknowledged) - kept).elements())
    assert not lost, f"{len(lost)} are not there: {lost[:3]}"


def _read_once(left: Left) -> None:
    """Checks that one batch reads each record, and each hop batch."""
    for sub in ("players", "teams"):
        check_read_once(left.rows(sub, "partition_batches"))
        check_never_back(left.rows(sub, "partition_batches"))
    reads = reads_of(left.rows("players", "partition_batches")).values()
    read = [place for part in chain.from_iterable(reads) for place in part.places()]
    _same(read, left.events)
    last = left.rows("players", "hop_by_team")[-1]["batch_id"]
    (part,) = [*reads_of(left.rows("teams", "partition_batches")).values()][-1]
    _same([part.until_offset], [last + 1])


def _in_the_tables_once(left: Left) -> None:
    """Checks that records in the tables are those in Kafka.

    Late and unusable ones count.
    """
    seen = [Place("events", r["source_partition"], r["source_offset"]) for r in left.rows("players", "seen")]
    late = [late.place for late in late_of(left.rows("players", "late_records"), "events")]
    bad = [Place(r["topic"], r["partition"], r["offset"]) for r in left.rows("players", "quarantine")]
    _same([*seen, *late, *bad], left.events)
    _same(seen, [row.place for row in left.players["seen"].rows])
    _same(late_of(left.rows("players", "late_records"), "events"), left.players["events"].late)
    _same(bad, [place for place, _ in left.players.quarantined])


def _history(left: Left) -> None:
    """Checks that sent updates are the oracle's changes, in order."""
    left.in_order(updates_of(left.rows("players", "changes"), "newest"), left.players["newest"].changes.sent, 0)
    left.in_order(updates_of(left.rows("teams", "changes"), "totals"), left.teams["totals"].changes.sent, 0)


def _news(left: Left) -> None:
    """Checks what consumers of the Kafka sink read, without repeated `tidemark-id`s."""
    told: dict[tuple[int, ...], tuple[str, Any]] = {}
    for message in left.news:
        _, _, _, batch, sequence = (message.headers["tidemark-id"] or b"").decode().split("/")
        fields = message.value and json.loads(message.value)
        record = ((message.key or b"").decode(), fields and {"team": fields["team"], "points": fields["points"]})
        assert told.setdefault((int(batch), int(sequence)), record) == record, f"two records with one id: {record}"
    sent = [(update.key, update.value and json.loads(update.value)) for update in left.players["newest"].changes.sent]
    left.in_order([told[place] for place in sorted(told)], sent, 0)


def _current(left: Left) -> None:
    """The current rows of both boards, and the state, are the oracle's."""
    board = [(r["player"], _text(r, "team", "points"), r["timestamp"]) for r in left.rows("players", "board")]
    stored = left.players["newest"].changes.stored
    _same(board, [(key, value, at_ms) for key, (value, at_ms) in stored.items() if value is not None])
    teams = [(r["team"], _text(r, "members", "level"), r["timestamp"]) for r in left.rows("teams", "team_board")]
    _same(teams, [(key, value, at_ms) for key, (value, at_ms) in left.teams["totals"].changes.stored.items()])
    newest = {row["key"]: row for row in left.rows("teams", "state_changes")}
    state = [(key, row["timestamp"], json.loads(row["state"])) for key, row in newest.items()]
    expected = [
        (key, team.newest_ms, {"team": key, "@n": n, "@points@low": points, "@points@high": 0, "@points@n": n})
        for key, team in left.teams["totals"].groups.items()
        for n, points in [(len(team.rows), sum(row.fields["points"] for row in team.rows))]  # less than 2^63
    ]
    _same(map(str, state), map(str, expected))


def _suppressed(left: Left) -> None:
    """Checks that each suppressed update is in one run of the ledger.

    A run has as many updates as it states.
    """
    ledger = [row for row in left.rows("players", "suppressed") if row["operator"] == "newest"]
    within: Counter[tuple[str, int, int, int]] = Counter()
    for key, place in left.players["newest"].changes.skips:
        (run,) = (r for r in ledger if r["key"] == key and r["source_partition"] == place.partition
                  and r["first_offset"] <= place.offset <= r["last_offset"])  # fmt: skip
        within[key, place.partition, run["first_offset"], run["last_offset"]] += 1
    named = [(r["key"], r["source_partition"], r["first_offset"], r["last_offset"]) for r in ledger]
    _same(within.elements(), [name for name, row in zip(named, ledger, strict=True) for _ in range(row["n"])])
    skips = {operator: left.players[operator].changes for operator in ("newest", "by_team")}
    for operator, judge in skips.items():
        _same(skips_of(left.rows("players", "suppressed"), operator).elements(), judge.skipped.elements())
    _same(
        skips_of(left.rows("teams", "suppressed"), "totals").elements(), left.teams["totals"].changes.skipped.elements()
    )


def _hop(left: Left) -> None:
    """Checks that the hop has the oracle's rows once, in order."""
    expected = [(batch_id, *row) for batch_id, handed in left.players["by_team"].handed.items() for row in handed]
    left.in_order(_rows_of_hop(left), expected, 0, 5, 6)


def _rows_of_hop(left: Left) -> list[tuple[Any, ...]]:
    """Returns the updates that were handed on, with the previous batch."""
    return [
        (
            row["batch_id"],
            row["key"],
            row["old_value"] and json.loads(row["old_value"]),
            row["value"] and json.loads(row["value"]),
            row["timestamp"],
            row["source_partition"],
            row["source_offset"],
        )
        for row in left.rows("players", "hop_by_team")
        if row["watermark"] is None and row["idle"] is None
    ]


def _accounting(left: Left) -> None:
    """The accounting closes for every batch and operator, as the oracle counts."""
    for sub, oracle in (("players", left.players), ("teams", left.teams)):
        outcomes = left.rows(sub, "operator_batches")
        check_accounting(outcomes)
        check_suppressed(outcomes, left.rows(sub, "suppressed"))
        _same(outcomes_of(outcomes).items(), counted(oracle.outcomes).items())


def _facts_once(left: Left) -> None:
    """Every batch has each of its rows once."""
    for sub in ("players", "teams"):
        for table, key in ONE_ROW_PER.items():
            rows = Counter((r["batch_id"], *(r[name] for name in key)) for r in left.rows(sub, table))
            assert max(rows.values(), default=1) == 1, f"{sub}/{table}: {rows.most_common(1)}"


LAWS: tuple[Callable[[Left], None], ...] = (
    _in_kafka,
    _read_once,
    _in_the_tables_once,
    _history,
    _news,
    _current,
    _suppressed,
    _hop,
    _accounting,
    _facts_once,
)


def _text(row: Row, *columns: str) -> str:
    return json.dumps({name: row[name] for name in columns}, separators=(",", ":"))


def _in_order(found: list[Any], expected: list[Any]) -> None:
    """Fails unless both are equal, and names the first difference."""
    if found != expected:
        at = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
        told = f"{found[at]} and not {expected[at]}" if at >= 0 else "one ends before the other"
        msg = f"{len(found)} and not {len(expected)} of them; number {at}: {told}"
        raise AssertionError(msg)


def _same(found: Iterable[Any], expected: Iterable[Any]) -> None:
    """Fails unless both have the same elements, equally often.

    The message names the surplus of each.
    """
    one, other = Counter(iter(found)), Counter(iter(expected))
    more, less = list((one - other).elements()), list((other - one).elements())
    assert (more, less) == ([], []), f"{len(more)} too many: {more[:3]}; {len(less)} missing: {less[:3]}"
