"""Fields of a topic change: rows, an SLA and findings follow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from support.crashes import Crash, crash_at
from support.play import Play, Row, ms
from support.topologies import operators, sink, table
from tidemark.facts.measures.sla_facts import facts
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.query.sql import Warehouse
from tidemark.sla.measures.status import Status, statuses
from tidemark.stream.read.parsing import parsed
from tidemark.why.walk import why

TOPOLOGY = """
name = "play"
[operators.flights]
kind = "source"
topic = "flights"
fields = "id string, tail string from tail_number, delay bigint, event_time bigint"
timestamp = "event_time"
bound = "1 s"
max_ahead = "unlimited"
""" + operators(
    newest=table("flights", key=["id"], columns=["tail", "delay"], strategy="on_update"),
    board=sink("newest", table="board"),
)
SLAS = {
    "play": {
        "fields_stay": {
            "subject": "flights", "measure": "schema_changes", "error_above": 0, "over": "1 h", "owner": "ann",
        }
    }
}  # fmt: skip
RECORD = {"tail_number": "N1", "delay": 5, "gate": "B7"}
RAW = {"source": pl.String(), "partition": pl.Int32(), "offset": pl.Int64(), "key": pl.Binary(), "value": pl.Binary()}


class Flights:
    """Plays batches of 20 records, parsed as those of Kafka."""

    def __init__(self, home: Path) -> None:
        self.play = Play(TOPOLOGY, home)
        self._offset = 0

    def copy(self, home: Path) -> Flights:
        """Continues at *home*, where the tables are copied to."""
        flights = Flights(home)
        flights.play, flights._offset = self.play.copy(home), self._offset
        return flights

    def batch(self, minute: int, record: dict[str, Any]) -> None:
        """Runs the batch of *minute* after noon."""
        self.play.batch(self._rows(minute, record), at_ms=ms(60 * minute))

    def _rows(self, minute: int, record: dict[str, Any]) -> list[Row]:
        source = self.play.topology.operators["flights"]
        assert isinstance(source, Source)
        raw = []
        for n in range(20):
            value = json.dumps({"id": f"{minute}-{n}", "event_time": ms(60 * minute), **record}).encode()
            raw.append({"source": "flights", "partition": 0, "offset": self._offset, "key": b"k", "value": value})
            self._offset += 1
        frame = pl.DataFrame(raw, RAW).with_columns(headers=pl.lit(None, HEADERS), clock_ms=pl.lit(0, pl.Int64))
        return parsed(source, frame).to_dicts()

    def changes(self) -> list[tuple[Any, ...]]:
        """Field, change, types and minutes of each row.

        The minutes are those of `found_at`, `first_seen_at` and `last_seen_at`.
        """
        instants = ("found_at", "first_seen_at", "last_seen_at")
        return [
            (
                row["field"],
                row["change"],
                row["was_type"],
                row["type"],
                *((row[at] - ms(0)) // 60_000 for at in instants),
            )
            for row in self.play.rows("schema_changes")
        ]

    def sla(self, minute: int) -> Status:
        """The status of the SLA."""
        topology = self.play.topology
        specs = parse(SLAS, topology, file="slas.toml")
        at_ms = ms(60 * minute)
        found = facts(Warehouse(self.play.home), topology, specs, {}, at_ms=at_ms)
        (status,) = statuses(specs, topology, found, [], at_ms=at_ms)
        return status

    def why(self, minute: int, operator: str = "board") -> list[str]:
        """The findings as lines."""
        return [
            each.line
            for each in why(self.play.topology, Layout(self.play.home), at_ms=ms(60 * minute), operator=operator)
        ]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Flights:
    """Five batches of one sort, which no test may change."""
    flights = Flights(tmp_path_factory.mktemp("before"))
    for minute in range(5):
        flights.batch(minute, RECORD)
    return flights


@pytest.fixture
def flights(before: Flights, tmp_path: Path) -> Flights:
    """The same, with drivers of its own."""
    shutil.copytree(before.play.home, tmp_path / "flights")
    return before.copy(tmp_path / "flights")


def test_an_undeclared_field_is_a_row_and_no_finding(flights):
    assert flights.changes() == [("gate", "undeclared", None, "string", 0, 0, 0)]
    assert flights.sla(5).verdict == "pass"
    assert [line.split(":")[0] for line in flights.why(5)] == ["nothing_wrong"]


def test_a_vanished_field_breaks_the_sla_and_is_named(flights):
    without = {"delay": 5, "gate": "B7", "wing": {"span": 30}}
    for minute in range(5, 10):
        flights.play.start()  # a new driver for each batch
        flights.batch(minute, without)

    assert flights.changes()[1:] == [
        ("wing", "new", None, "object", 5, 5, 5),
        ("tail_number", "vanished", None, "string", 9, 0, 4),
    ]
    broken = flights.sla(10)
    assert (broken.verdict, broken.culprit, broken.records) == ("error", "flights", 2)
    assert flights.why(10)[0] == (
        "field_vanished: board ← flights since 2014-05-13T12:04:00.000Z: field tail_number of topic flights "
        "vanished: no sampled record has it; rows have null in tail; ask its producer to send tail_number, or declare "
        "the field that replaces it"
    )
    assert flights.sla(70).verdict == "pass"
    gone = "SELECT change, epoch_ms(last_seen_at) FROM field_changes WHERE field = 'tail_number'"
    assert [*Warehouse(flights.play.home).ask(gone).rows] == [("vanished", ms(240))]


@pytest.mark.long  # the rule itself is in tests/unit/test_schema_watch.py
def test_a_vanished_field_that_returns_is_a_finding_no_more(flights):
    for minute in range(5, 10):
        flights.batch(minute, {"delay": 5, "gate": "B7"})
    flights.batch(10, RECORD)

    assert flights.changes()[-1] == ("tail_number", "new", None, "string", 10, 0, 10)
    assert [line for line in flights.why(10) if line.startswith("field_")] == []


def test_a_retyped_field_that_fills_the_quarantine_is_named(flights):
    flights.batch(5, RECORD | {"delay": "5 min"})

    assert flights.changes()[-1] == ("delay", "retyped", "number", "string", 5, 0, 5)
    (found,) = [line for line in flights.why(6) if line.startswith("field_")]
    assert found.startswith(
        "field_retyped: board ← flights since 2014-05-13T12:05:00.000Z: field delay of topic flights is string and was "
        "number; delay is declared as bigint, and records are quarantined; ask its producer for the former type"
    )
    assert flights.sla(6).records == 1


@pytest.mark.long
def test_a_retyped_text_harms_nothing(flights):
    flights.batch(5, RECORD | {"tail_number": 7})

    assert flights.changes()[-1] == ("tail_number", "retyped", "string", "number", 5, 0, 5)
    assert [line for line in flights.why(6) if line.startswith("field_")] == []


@pytest.mark.long  # the rule itself is in tests/unit/test_schema_watch.py
def test_a_field_is_seen_again_hourly_at_most(flights):
    for minute in (59, 60, 61, 119, 120):
        flights.batch(minute, RECORD)
    assert [(first, last) for *_, first, last in flights.changes()] == [(0, 0), (0, 60), (0, 120)]
    (row,) = Warehouse(flights.play.home).ask("SELECT field, change, epoch_ms(last_seen_at) FROM field_changes").rows
    assert row == ("gate", "undeclared", ms(7_200))


@pytest.mark.parametrize("step", ["decided", pytest.param("committed schema_changes", marks=pytest.mark.long)])
def test_a_killed_driver_records_a_change_once(flights, step):
    flights.play.start(reached=crash_at(step))
    rows = flights._rows(5, RECORD | {"wing": 1})
    with pytest.raises(Crash):
        flights.play.process(5, rows, at_ms=ms(300))
    flights.play.start()
    flights.play.process(5, rows, at_ms=ms(300))

    assert flights.changes()[1:] == [("wing", "new", None, "number", 5, 5, 5)]
