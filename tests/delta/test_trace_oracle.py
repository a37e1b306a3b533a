"""Random records and rows, traced, agree with the oracle."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.crashes import Crash, crash_at
from support.oracle import (
    Aggregate,
    FinalAggregate,
    Hop,
    Join,
    Map,
    Operator,
    Oracle,
    Repartition,
    Sink,
    Source,
    Table,
    key_of,
)
from support.oracle import Row as OracleRow
from support.oracle_parts import Batch, Fields, Message, Place, Read, text
from support.play import Play, Row, bad, ms
from support.topologies import aggregate, join, map_of, repartition, sink, source, table, topology_of
from support.traced import KeptRecords
from tidemark.trace.lineage import trace_row
from tidemark.trace.outcomes import RecordPosition

TOML = topology_of(
    prices=source("id string, price int", topic="prices", sub_topology="main", bound="2 s"),
    price_now=table("prices", columns=["price"]),
    events=source("id string, grp string, v int", bound="2 s", idle_after="1 h", allowed_lateness="20 s"),
    mapped=map_of(select={"id": "id", "grp": "grp", "v": "v"}, where="v > 0"),
    priced=join("mapped", "price_now", on={"id": "id"}),
    newest=table("priced", columns=["grp", "v", "price"]),
    board=sink("newest", table="board"),
    by_grp=repartition("newest", id=["id"], key=["grp"], columns=["v"]),
    total=aggregate("by_grp", sub_topology="totals", aggregates={"n": "count(*)", "v": "sum(v)"}, rule="value_only"),
    totals_out=sink("total", table="totals"),
    per_window=aggregate(
        "mapped",
        key=["id"],
        window={"tumbling": "10 s"},
        strategy="on_window_close",
        aggregates={"n": "count(*)", "v": "sum(v)"},
    ),
    windows_out=sink("per_window", table="windows"),
)
PARTITIONS = 3
IDS = [f"id{n}" for n in range(12)]
STEPS = [
    "decided",
    "committed changes",
    "committed board",
    "measured",
    "committed operator_batches",
    "committed batches",
]
Results = dict[tuple[str, int, int], Counter[tuple[str, str]]]
"""By source, partition and offset: how often each operator had each outcome."""


@dataclass(kw_only=True)
class KeptWindows(FinalAggregate):
    """A windowed aggregate that keeps the records of each closed window."""

    closed_of: dict[str, list[Place]] = field(default_factory=dict)

    def end(self, watermark_ms: int | None) -> Iterator[OracleRow]:
        for group in self.groups.values():
            if self.closed(group.end_ms, watermark_ms):
                self.closed_of[text(group.key)] = [row.place for row in group.rows]
        yield from super().end(watermark_ms)


@dataclass(kw_only=True)
class KeptTotals(Aggregate):
    """An aggregate that keeps the records of each newest result.

    They are the newest of each id that it counts after the batch of this result. *id_of* is the id of a record.
    """

    id_of: Callable[[Place], str]
    counted: dict[str, dict[str, Place]] = field(default_factory=lambda: defaultdict(dict))
    made_of: dict[str, list[Place]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def take(self, row: OracleRow) -> Iterator[OracleRow]:
        counted, id_ = self.counted[key_of(self.key, row.fields)], self.id_of(row.place)
        counted.pop(id_, None)
        if not row.deletes:
            counted[id_] = row.place
        for result in super().take(row):
            self.written.add(key_of(self.key, result.fields))
            yield result

    def end(self, watermark_ms: int | None) -> Iterator[OracleRow]:
        yield from super().end(watermark_ms)
        for key in self.written:
            self.made_of[key] = [*self.counted[key].values()]
            assert len(self.made_of[key]) == len(self.groups[key].rows)
        self.written.clear()


class FateOracle(Oracle):
    """An oracle that keeps the outcome of each row at each operator."""

    def __init__(self, operators: Iterable[Operator], batches: Iterable[Batch]) -> None:
        self.results: dict[tuple[int, int], Counter[tuple[str, str]]] = defaultdict(Counter)
        super().__init__(operators, batches)

    def _send(self, sender: Operator, rows: Iterable[OracleRow]) -> None:
        for row in rows:
            for operator in self._operators.values():
                if operator.input != sender.name:
                    continue
                before = Counter(operator.count)
                results = [*operator.take(row)]
                became = operator.count - before
                place = (row.place.partition, row.place.offset)
                if isinstance(operator, FinalAggregate) and not became["late"]:
                    became = Counter(superseded=1)  # unless it is the last of its window, see `settled`
                for word in ("emitted", "suppressed", "superseded", "late", "filtered", "passed"):
                    if became[word]:
                        self.results[place][operator.name, word] += became[word]
                self._send(operator, results)

    def settled(self) -> dict[tuple[int, int], Counter[tuple[str, str]]]:
        """Returns the outcomes after the last batch."""
        for operator in self._operators.values():
            if isinstance(operator, FinalAggregate):
                sent = [(u.partition, u.offset) for updates in operator.sent.values() for u in updates]
                held = [(g.place.partition, g.place.offset) for g in operator.groups.values()]
                for word, places in (("emitted", sent), ("held", held)):
                    for place in places:
                        self.results[place][operator.name, "superseded"] -= 1
                        self.results[place][operator.name, word] += 1
        return self.results


class Drawn:
    """A play of *n* random records, and its oracles.

    In every second batch the driver is killed at a random step; `kills` counts those.
    """

    def __init__(self, home: Path, n: int, seed: int) -> None:
        self._random = random.Random(seed)
        self.play = Play(TOML, home, partitions=PARTITIONS)
        self.kept = KeptRecords(self.play)
        self.messages: dict[Place, Message] = {}
        self._fields: dict[Place, Fields | str] = {}
        self._ends: Counter[tuple[str, int]] = Counter()
        self.places: list[RecordPosition] = []
        self.kills, self._epoch = 0, 1
        batches, now_s = [], 100.0
        while len(self.places) < n:
            now_s += self._random.choice((1, 3, 8))
            batches.append(self._batch(now_s, len(batches)))
            if self._random.random() < 0.5:
                self.play.hop("totals", at_ms=ms(now_s))
        self.play.hop("totals", at_ms=ms(now_s + 1))
        self.main = FateOracle(self._main(), batches)
        self.totals = FateOracle(self._totals(), self._batches_of_hop())
        self.results = self._all_results()

    def _batch(self, now_s: float, number: int) -> Batch:
        rows: list[Row] = []
        starts = Counter(self._ends)
        for _ in range(self._random.randint(1, 25)):
            rows.append(self._row(now_s))
        self._run(number, self.kept.keep(*rows), ms(now_s))
        parts = [("prices", 0), *(("events", part) for part in range(PARTITIONS))]
        reads = [Read(*part, starts[part], self._ends[part], self._ends[part]) for part in parts]
        return Batch(ms(now_s), reads, number)

    def _run(self, number: int, rows: list[Row], at_ms: int) -> None:
        if self._random.random() < 0.5:
            self._start(crash_at(self._random.choice(STEPS)))
        try:
            self.play.process(number, rows, at_ms=at_ms)
        except Crash:
            self.kills += 1
            self._start()
            self.play.process(number, rows, at_ms=at_ms)

    def _start(self, reached: Callable[[str], None] = lambda step: None) -> None:
        self._epoch += 1
        self.play.start(reached=reached, epoch=self._epoch)

    def _row(self, now_s: float) -> Row:
        drawn, id_ = self._random, self._random.choice(IDS)
        at_ms = ms(now_s - drawn.choice((0, 0, 1, 2, 4, 9, 15, 60)))
        if drawn.random() < 0.15:
            fields: Fields = {"id": id_, "price": drawn.randint(1, 3), "event_time": at_ms}
            return self._kept("prices", 0, fields, self.play.row("prices", at_ms, id=id_, price=fields["price"]))
        part = drawn.randrange(PARTITIONS)
        if drawn.random() < 0.05:
            return self._kept("events", part, "malformed_json", bad("malformed_json", part=part)(self.play))
        fields = {"id": id_, "grp": drawn.choice("xyz"), "v": drawn.randint(0, 3), "event_time": at_ms}
        named = {name: fields[name] for name in ("id", "grp", "v")}
        return self._kept("events", part, fields, self.play.row("events", at_ms, partition=part, **named))

    def _kept(self, name: str, partition: int, fields: Fields | str, row: Row) -> Row:
        place = Place(name, partition, row["offset"])
        self._ends[name, partition] += 1
        self.messages[place] = Message(place, b"k", b"")
        self._fields[place] = fields
        self.places.append(RecordPosition(*place))
        return row

    def _main(self) -> list[Operator]:
        parse = lambda message, newest_ms: self._fields[message.place]  # noqa: E731
        price_now = Table(name="price_now", input="prices", key="id", columns=("price",))
        prices = Source(name="prices", parse=parse, bound_ms=2_000, idle_after_ms=10**15, messages=self.messages)
        events = Source(
            name="events", parse=parse, bound_ms=2_000, idle_after_ms=3_600_000, late_after_ms=20_000,
            messages=self.messages,
        )  # fmt: skip
        columns = ("id", "grp", "v")
        return [
            prices,
            price_now,
            events,
            Map(
                name="mapped",
                input="events",
                select=lambda fields: {name: fields[name] for name in columns},
                where=lambda fields: fields["v"] > 0,
            ),
            Join(name="priced", input="mapped", table=price_now),
            Table(name="newest", input="priced", key="id", columns=("grp", "v", "price")),
            Sink(name="board", input="newest"),
            Repartition(name="by_grp", input="newest", id="id", key=("grp",), columns=("v",)),
            KeptWindows(
                name="per_window", input="mapped", key=("id",), result=_result, size_ms=10_000, every_ms=10_000
            ),
            Sink(name="windows_out", input="per_window"),
        ]

    def _totals(self) -> list[Operator]:
        repartitioned = self.main["by_grp"]
        assert isinstance(repartitioned, Repartition)
        return [
            Hop(name="by_grp_source", handed=repartitioned.handed, watermarks=self.main.watermarks),
            KeptTotals(name="total", input="by_grp_source", key=("grp",), result=_result, id_of=self._id_of),
            Sink(name="totals_out", input="total"),
        ]

    def _id_of(self, place: Place) -> str:
        """Returns the id of the event behind a row of the hop."""
        fields = self._fields[place._replace(topic="events")]
        assert isinstance(fields, dict)
        return str(fields["id"])

    def _batches_of_hop(self) -> list[Batch]:
        batches: list[Batch] = []
        for batch_id, rows in self.play.reads("totals").items():
            reads = [Read(row["source"], 0, row["from_offset"], row["until_offset"]) for row in rows]
            batches.append(Batch(rows[0]["decided_at"], reads, batch_id))
        return batches

    def _all_results(self) -> Results:
        """Returns the outcomes of each record after its source."""
        # Places of prices and events in partition 0 are the same: only operators tell them apart.
        of_prices = {"price_now"}
        found: Results = {}
        results = [*self.main.settled().items(), *self.totals.settled().items()]
        for (partition, offset), counts in results:
            for (operator, word), n in counts.items():
                name = "prices" if operator in of_prices else "events"
                if n:
                    found.setdefault((name, partition, offset), Counter())[operator, word] += n
        for place, _ in self.main.quarantined:
            found[tuple(place)] = Counter({("events", "quarantined"): 1})
        for late in self.main["events"].late:  # type: ignore[attr-defined]
            found[tuple(late.place)] = Counter({("events", "late"): 1})
        return found


def _result(rows: list[Fields]) -> Fields:
    return {"n": len(rows), "v": sum(row["v"] for row in rows) if rows else None}


def check_records(drawn: Drawn, places: Iterable[RecordPosition]) -> Counter[str]:
    """Compares each trace of *places*; counts the outcomes."""
    tracer, seen = drawn.kept.tracer(), Counter[str]()
    sinks = {sink.name for sub in drawn.play.topology.sub_topologies for sink in sub.sinks}

    def told(counts: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
        # A sink has one line for all updates of a record in a batch.
        return {what: 1 if what[0] in sinks else n for what, n in counts.items()}

    for place in places:
        results = tracer.trace(place).results
        traced = Counter((f.operator, f.outcome.value) for f in results if f.kind != "source" or f.outcome != "passed")
        assert told(traced) == told(drawn.results.get(tuple(place), Counter())), place
        seen.update(result.outcome.value for result in results)
    return seen


def check_rows(drawn: Drawn, most: int) -> Counter[str]:
    """Compares the records of at most *most* rows; counts them."""
    tracer, seen = drawn.kept.tracer(), Counter[str]()
    windows, totals = drawn.main["per_window"], drawn.totals["total"]
    assert isinstance(windows, KeptWindows)
    assert isinstance(totals, KeptTotals)
    wanted = [("windows", key, places) for key, places in windows.closed_of.items()]
    wanted += [("totals", key, places) for key, places in totals.made_of.items() if places]
    changes = drawn.main["newest"].changes.sent  # type: ignore[attr-defined]
    newest = {update.key: Place("events", update.partition, update.offset) for update in changes}
    wanted += [("board", key, [place]) for key, place in newest.items()]
    random.Random(1).shuffle(wanted)
    for name, key, places in wanted[:most]:
        row = trace_row(tracer, name, key)
        events = {(place.partition, place.offset) for place in row.places if place.source == "events"}
        assert events == {(place.partition, place.offset) for place in places}, (name, key)
        assert row.is_verified, (name, key, row.differences)
        seen[name] += 1
    return seen


def test_some_random_records_and_their_rows_agree(tmp_path: Path) -> None:
    drawn = Drawn(tmp_path, 25, seed=7)
    check_records(drawn, drawn.places[-8:])
    assert check_rows(drawn, 1).total() == 1


@pytest.mark.long  # 15 CPU s: each trace reads a dozen tables; the case above is the short one
def test_fifty_random_records_and_their_rows_agree(tmp_path: Path) -> None:
    drawn = Drawn(tmp_path, 60, seed=7)
    seen = check_records(drawn, random.Random(1).sample(drawn.places, 50))
    assert {"emitted", "suppressed", "late", "filtered", "superseded", "quarantined"} <= seen.keys()
    assert check_rows(drawn, 6).total() == 6


@pytest.mark.long  # minutes: each trace reads a dozen tables
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_two_thousand_random_records_and_rows_agree(tmp_path: Path, seed: int) -> None:
    drawn = Drawn(tmp_path, 500, seed=seed)
    assert drawn.kills >= 13, "with four seeds more than 50"
    seen = check_records(drawn, drawn.places[:500])
    assert {"emitted", "suppressed", "late", "filtered", "superseded", "held", "quarantined"} <= seen.keys()
    assert check_rows(drawn, 125).total() == 125
