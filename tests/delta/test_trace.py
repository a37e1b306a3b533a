"""Records are followed to their rows, and rows to their records."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from support.documented_commands import shown_commands, variants
from support.play import Play, Row, bad, ms
from support.quiet_broker import Ends
from support.topologies import (
    BOARD,
    WINDOW_BOARD,
    aggregate,
    join,
    map_of,
    operators,
    orders_in_files,
    repartition,
    sink,
    source,
    table,
    topology_of,
)
from support.traced import KeptRecords
from tidemark.cli.explain import trace as trace_command
from tidemark.cli.explain.audited import tracer_and_topics
from tidemark.errors import InvalidArgument
from tidemark.facts.versions import CommittedVersion, NoVersion
from tidemark.model.project.files import CHECKOUT
from tidemark.model.topology import parse
from tidemark.query.sql import Warehouse
from tidemark.storage.delta.log import commit_file
from tidemark.storage.delta.tables import append, scan
from tidemark.trace.counts import reconcile
from tidemark.trace.lineage import RowTrace, trace_row
from tidemark.trace.outcomes import BatchTimes, RecordOutcome, RecordPosition, RecordTrace
from tidemark.trace.record import Tracer

TOML = topology_of(
    {"level": "trace"},
    events=source("id string, grp string, v int", sub_topology="main"),
    mapped=map_of(select={"id": "id", "grp": "grp", "v": "v"}, where="v > 0"),
    newest=table("mapped", columns=["grp", "v"]),
    board=sink("newest", table="board"),
    by_grp=repartition("newest", id=["id"], key=["grp"], columns=["v"]),
    total=aggregate("by_grp", sub_topology="totals", aggregates={"n": "count(*)", "v": "sum(v)"}),
    totals_out=sink("total", table="totals"),
    per_minute=aggregate(
        "mapped",
        key=["id"],
        window={"tumbling": "1 min"},
        strategy="on_window_close",
        aggregates={"n": "count(*)"},
    ),
    minutes=sink("per_minute", table="minutes"),
)
SIMPLE = topology_of(
    events=source("id string, grp string, v int", sub_topology="main"),
    mapped=map_of(select={"id": "id", "v": "v"}, where="v > 0"),
    newest=table("mapped", columns=["v"]),
    board=sink("newest", table="board"),
)
NOON_MS = 1_399_982_400_000
"""2014-05-13T12:00:00Z, the first instant of the play."""
MINUTE = f'{{"id":"a","window_start":{NOON_MS}}}'


class Played(Play):
    """A play whose records stay at its broker."""

    def __init__(self, home: Path, toml: str = TOML) -> None:
        super().__init__(toml, home)
        self.kept = KeptRecords(self)
        self.traces: dict[RecordPosition, RecordTrace] = {}

    def event(self, at_s: float, id_: str | None, v: int, grp: str = "g") -> Row:
        return self.row("events", ms(at_s), id=id_, v=v, grp=grp)

    def read(self, *rows: Row, at_s: float) -> None:
        self.batch(self.kept.keep(*rows), at_ms=ms(at_s))

    def trace(self, offset: int) -> RecordTrace:
        place = RecordPosition("events", 0, offset)
        if place not in self.traces:
            self.traces[place] = self.kept.tracer().trace(place)
        return self.traces[place]

    def results(self, offset: int) -> list[tuple[str, int | None, str]]:
        return [(result.operator, result.batch_id, result.outcome.value) for result in self.trace(offset).results]

    def reason(self, offset: int, operator: str) -> str:
        return next(result.reason for result in self.trace(offset).results if result.operator == operator)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Three batches and a restart; in record order offsets 0 to 9."""
    play = Played(tmp_path_factory.mktemp("trace"))
    play.read(play.event(0, "a", 1), play.event(1, "b", 2), play.event(2, "a", 0), play.event(3, "a", 1), at_s=5)
    play.hop("totals", at_ms=ms(6))
    play.start()  # a new driver, from the journal
    play.read(play.event(90, "a", 1), play.event(5, "b", 7), at_s=95)
    play.read(
        play.event(10, "b", 7), play.event(11, "z", 3), play.event(12, None, 3), bad("malformed_json")(play), at_s=96
    )
    play.hop("totals", at_ms=ms(97))
    return play


def test_an_emitted_record_is_followed_over_the_hop(played: Played) -> None:
    assert played.results(0) == [
        ("events", 0, "passed"),
        ("mapped", 0, "passed"),
        ("newest", 0, "emitted"),
        ("per_minute", 0, "superseded"),
        ("board", 0, "passed"),
        ("by_grp", 0, "emitted"),
        ("by_grp_source", 0, "passed"),
        ("total", 0, "emitted"),
        ("totals_out", 0, "passed"),
    ]
    assert played.reason(0, "per_minute") == "0/3 overtook it in batch 0"


def test_a_record_says_since_which_version_tables_show_it(played: Played) -> None:
    visible = played.trace(5).document["visible"]
    shown = {each["table"]: (each["version"], each["rows"], each["batch_id"]) for each in visible}
    # Version 0 creates a table; batch 0 is version 1 of each, and batch 1 version 2.
    assert shown == {"board": (2, 1, 1), "minutes": (2, 1, 1), "totals": (2, 1, 1)}


def test_a_filtered_record_ends_at_its_condition(played: Played) -> None:
    assert played.results(2) == [("events", 0, "passed"), ("mapped", 0, "filtered")]
    assert played.reason(2, "mapped") == "not: v > 0"


def test_a_suppressed_record_names_the_update_it_repeats(played: Played) -> None:
    assert ("newest", 0, "suppressed") in played.results(3)
    assert played.reason(3, "newest") == (
        "it repeats the value of 2014-05-13T12:00:00.000Z, emitted for 0/0 in batch 0"
    )
    # After a restart the value of the driver before counts.
    assert ("newest", 1, "suppressed") in played.results(4)
    assert played.reason(4, "newest").endswith("emitted for 0/0 in batch 0")


def test_a_held_update_is_emitted_when_its_window_closes(played: Played) -> None:
    assert played.results(3)[-2:] == [("per_minute", 1, "emitted"), ("minutes", 1, "passed")]
    assert played.reason(3, "per_minute") == "it waited from batch 0 on"
    assert ("per_minute", 1, "held") in played.results(4)


def test_late_and_quarantined_records_say_why(played: Played) -> None:
    # The watermark before batch 2 is 90 s − 1 s − 1 ms.
    assert ("per_minute", 2, "late") in played.results(6)
    assert played.reason(6, "per_minute") == (
        "1 min 18 s behind the watermark 2014-05-13T12:01:28.999Z, which events determined"
    )
    assert [result for result in played.results(8) if result[2] == "quarantined"] == [
        ("newest", 2, "quarantined"),
        ("per_minute", 2, "quarantined"),
    ]
    assert played.results(9) == [("events", 2, "quarantined")]
    assert played.reason(9, "events") == "malformed_json"


def test_an_unread_record_says_how_far_the_stream_is(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.broker = Ends(1)
    play.broker.ends = {0: 3}
    play.read(play.event(0, "a", 1), at_s=5)
    for offset in (1, 2):
        assert play.results(offset) == [("events", None, "unread")]
        assert play.reason(offset, "events") == "the stream has read the offsets below 1"
    assert play.results(3) == [("events", None, "unknown")]
    assert play.reason(3, "events") == "batch 0, of 2014-05-13T12:00:05.000Z, found the partition's end at 3"


def test_a_record_that_no_batch_saw_is_not_said_to_exist(played: Played) -> None:
    assert played.results(10) == [("events", None, "unknown")]
    assert played.reason(10, "events") == "batch 2, of 2014-05-13T12:01:36.000Z, found the partition's end at 10"
    (result,) = played.kept.tracer().trace(RecordPosition("events", 7, 0)).results
    assert (result.outcome, result.reason) == ("unknown", "the stream knows no partition 7; known: 0")


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_record_waits_queues_and_is_worked_on(tmp_path: Path) -> None:
    play = Played(tmp_path)
    play.reading_ms = 10  # each look at the clock takes so long
    play.read(play.event(0, "a", 1), at_s=5)
    (times,) = play.trace(0).batches
    # The batch starts at the second look at the clock, after its record has waited for 5 s.
    assert (times.started_at_ms, times.waiting_ms) == (ms(5.02), 5_020)
    clocks = {row["operator"]: row for row in play.rows("operator_batches")}
    # The hop is committed last; the way to it goes over the table.
    assert times.finished_at_ms == clocks["by_grp"]["finished_at"] > clocks["board"]["finished_at"]
    way = ("events", "newest", "by_grp")
    assert times.queued_ms == sum(clocks[name]["queued_ms"] for name in way)
    assert times.working_ms > 0
    assert times.waiting_ms + times.queued_ms + times.working_ms == times.finished_at_ms - ms(0)


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_record_that_is_gone_has_the_outcomes_that_facts_have(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), play.event(1, "b", 0), at_s=5)
    play.kept.gone = {("events", 0, 0), ("events", 0, 1)}
    assert ("newest", 0, "emitted") in play.results(0)
    # One of two records was filtered out, and no fact says which.
    assert play.results(1)[:2] == [("events", 0, "passed"), ("mapped", 0, "unknown")]
    assert play.reason(1, "mapped") == "filtered or passed: the topic events no longer has the record"


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_record_whose_facts_are_gone_is_unknown(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    play.read(play.event(6, "a", 2), at_s=7)
    batches = DeltaTable(str(play.table("batches")))
    batches.delete("batch_id = 0")
    assert play.results(0) == [("events", None, "unknown")]
    assert play.reason(0, "events") == "facts of that time are no longer kept; the oldest are of offset 1"
    batches.delete()
    assert play.reason(1, "events") == "facts of that time are no longer kept"


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_an_older_update_of_a_batch_that_decides_is_superseded(tmp_path: Path) -> None:
    toml = topology_of(events=source("id string, grp string, v int")) + operators(
        newest=table(columns=["v"], decide="batch"), board=sink("newest", table="board")
    )
    play = Played(tmp_path, toml)
    play.read(play.event(0, "a", 1), play.event(1, "a", 2), at_s=5)
    assert play.results(0) == [("events", 0, "passed"), ("newest", 0, "superseded")]
    assert play.reason(0, "newest") == "0/1 was newer, and is emitted"


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_an_update_without_facts_is_not_called_superseded(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    DeltaTable(str(play.table("changes"))).delete("operator = 'newest'")
    assert ("newest", 0, "unknown") in play.results(0)
    assert play.reason(0, "newest") == "its facts are no longer kept"


def test_facts_that_are_kept_and_name_no_update_are_not_called_gone(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    # By this file the record would have been an update of the key A, of which no fact can tell.
    changed = SIMPLE.replace('id = "id"', 'id = "upper(id)"')
    kept = play.kept.tracer()
    tracer = Tracer(parse(tomllib.loads(changed), file="play.toml"), kept.layout, play.kept)
    result = tracer.trace(RecordPosition("events", 0, 0)).results[-1]
    assert (result.operator, result.key, result.outcome) == ("newest", "A", "unknown")
    assert result.reason == "no fact tells what became of it"


def test_an_offset_before_the_first_that_a_stream_read_is_not_called_forgotten(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(*({**play.event(n, "a", n), "offset": 5 + n} for n in range(2)), at_s=5)
    assert play.results(4) == [("events", None, "unread")]
    assert play.reason(4, "events") == "the stream began to read the partition at offset 5"


SESSIONS = topology_of(
    {"level": "trace"},
    events=source("id string, grp string, v int"),
    visits=aggregate(key=["id"], window={"session": "10 s"}, aggregates={"n": "count(*)"}),
    log=sink("visits", table="visits_log"),
)


def test_a_session_that_was_merged_later_adds_no_update_to_a_record(tmp_path: Path) -> None:
    play = Played(tmp_path, SESSIONS)
    # The second record begins at noon, 6 s earlier, and both are of one session from then on.
    play.read(play.event(6, "a", 1), play.event(0, "a", 2), at_s=7)
    updates = [(each.operator, each.outcome, each.key) for each in play.trace(0).results if each.operator == "visits"]
    assert updates == [("visits", "emitted", f'{{"id":"a","window_start":{NOON_MS + 6_000}}}')]


def test_two_updates_of_a_record_are_one_line_of_a_table_and_batch(tmp_path: Path) -> None:
    play = Played(tmp_path)
    play.read(play.event(0, "a", 1, "g"), at_s=5)
    play.hop("totals", at_ms=ms(6))
    play.read(play.event(10, "a", 1, "h"), at_s=11)
    play.hop("totals", at_ms=ms(12))
    # g has lost its only record, and h has got it.
    assert [key for name, _, key in updates_of(play.trace(1)) if name == "total"] == ["g", "h"]
    assert [batch_id for name, batch_id, _ in updates_of(play.trace(1)) if name == "totals_out"] == [1]
    lines = [line.partition(" since")[0] for line in trace_command.as_text(play.trace(1)).splitlines()]
    assert [line for line in lines if line.startswith("totals: ")] == ["totals: 2 rows"]


def updates_of(trace: RecordTrace) -> list[tuple[str, int | None, str | None]]:
    return [(each.operator, each.batch_id, each.key) for each in trace.results]


UNION = topology_of(
    events=source("id string, grp string, v int", sub_topology="main"),
    orders=source("id string, grp string, v int", topic="orders", sub_topology="main"),
    both={"kind": "union", "inputs": ["events", "orders"]},
    log=sink("both", table="log"),
)


def test_the_rows_of_a_record_are_not_those_of_another_source_with_its_offset(tmp_path: Path) -> None:
    play = Played(tmp_path, UNION)
    play.read(play.event(0, "a", 1), play.row("orders", ms(0), id="b", v=2, grp="g"), at_s=5)
    assert [(each.table, each.rows) for each in play.trace(0).visible] == [("log", 1)]


def test_a_row_that_was_deleted_is_not_called_replaced_where_a_table_has_no_key(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    DeltaTable(str(play.table("board"))).delete()
    assert play.reason(0, "board") == "board has no row of it any more: it was deleted"
    assert play.trace(0).visible == []


def test_numbers_of_a_trace_have_one_form() -> None:
    times = BatchTimes(
        sub_topology="main", batch_id=3, came_at_ms=0, started_at_ms=24_000, finished_at_ms=29_000, queued_ms=4_000
    )
    trace = RecordTrace(place=RecordPosition("events", 0, 1), timestamp_ms=0, batches=[times])
    assert trace_command.as_text(trace).splitlines()[-1].split() == ["main", "3", "24,000", "4,000", "1,000"]


@pytest.mark.parametrize(
    ("places", "found", "said"),
    [
        (0, {"differences": ["v"]}, ["not verified: no fact names a record that made it"]),
        (1, {}, ["made of 1 record:", "verified: this record alone makes the same row"]),
        (2, {}, ["made of 2 records:", "verified: these records alone make the same row"]),
        (1, {"differences": ["v"]}, ["made of 1 record:", "not verified: made of this record alone, it differs in v"]),
        (
            2,
            {"differences": ["v", "w"]},
            ["made of 2 records:", "not verified: made of these records alone, it differs in v, w"],
        ),
        (
            1,
            {"missing": 1, "why_missing": ["1 of events: gone"]},
            ["made of at least 1 record:", "not verified: this record cannot be read again (1 of events: gone)"],
        ),
        (
            2,
            {"missing": 1, "why_missing": ["1 of events: gone"]},
            [
                "made of at least 2 records:",
                "not verified: 1 of these records cannot be read again (1 of events: gone)",
            ],
        ),
    ],
)  # fmt: skip
def test_the_records_of_a_row_are_told_by_their_number(places: int, found: dict[str, Any], said: list[str]) -> None:
    row = RowTrace(
        table="board",
        key="a",
        row={"v": 1},
        batch_id=0,
        commit=CommittedVersion(1, 0),
        places=[RecordPosition("events", 0, offset) for offset in range(places)],
        **found,
    )
    lines = trace_command.row_as_text(row).splitlines()[2:]
    assert [line for line in lines if not line.startswith("  ")] == said
    assert row.is_verified == said[-1].startswith("verified")


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_held_records_of_a_source_are_followed_into_their_batch(tmp_path: Path) -> None:
    toml = topology_of(
        {"max_drift": "10 s"},
        events=source("id string, v int", idle_after="1 h"),
        newest=table(columns=["v"]),
        board=sink("newest", table="board"),
    )
    play = Play(toml, tmp_path, partitions=2)
    kept = KeptRecords(play)

    def event(at_s: float, v: int, partition: int) -> Row:
        return play.row("events", ms(at_s), partition=partition, id="a", v=v)

    play.batch(kept.keep(event(0, 1, 0), event(0, 2, 1)), at_ms=ms(1))
    # Partition 1 runs 100 s ahead of partition 0.
    play.batch(kept.keep(event(100, 3, 1), event(1, 4, 0)), at_ms=ms(101))
    play.batch(kept.keep(event(101, 5, 1)), at_ms=ms(102))
    waiting = kept.tracer().trace(RecordPosition("events", 1, 2)).results[-1]
    play.batch(kept.keep(event(100, 6, 0)), at_ms=ms(103))
    play.batch(kept.keep(event(101, 7, 0)), at_ms=ms(104))
    held = [row["source_offset"] for row in play.rows("state_changes") if row["kind"] == "held_record"]
    assert held == [2]
    results = kept.tracer().trace(RecordPosition("events", 1, 2)).results
    outcomes = [(result.operator, result.outcome) for result in results]
    assert outcomes[0] == ("events", RecordOutcome.HELD)
    assert (waiting.reason, results[0].reason) == (
        "other partitions are behind (max_drift)",
        "other partitions were behind (max_drift)",
    )
    released = next(
        row["batch_id"] for row in play.rows("changes") if (row["source_partition"], row["source_offset"]) == (1, 2)
    )
    assert outcomes[1:] == [
        ("events", RecordOutcome.PASSED),
        ("newest", RecordOutcome.EMITTED),
        ("board", RecordOutcome.PASSED),
    ]
    assert results[1].batch_id == released > results[0].batch_id


def test_an_invalid_topology_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_PROJECT", str(tmp_path))
    folder = tmp_path / "topologies"
    folder.mkdir()
    (folder / "play.toml").write_text(SIMPLE)
    (folder / "invalid.toml").write_text("name = 3")
    (folder / "other.toml").write_text('name = "other"\n' + operators(orders=source("id string")))
    asked = asked_in(tmp_path, "--row", "board", "a", "--bootstrap", "localhost:1")
    tracer, _ = tracer_and_topics(asked, "board")
    assert tracer.topology.name == "play"
    with pytest.raises(InvalidArgument, match="no valid topology of the project has 'bord'; there are: other, play"):
        tracer_and_topics(asked, "bord")
    # The topology is named before what is asked about it, as in `why` and `status`.
    tracer, _ = tracer_and_topics(asked_in(tmp_path, "other", "--row", "bord", "a"), "bord")
    assert tracer.topology.name == "other"


def asked_in(folder: Path, *words: str) -> argparse.Namespace:
    """The options of `tidemark trace` with *words*, about the warehouse in *folder*."""
    parser = argparse.ArgumentParser()
    trace_command.add_options(parser)
    parser.set_defaults(home=folder, warehouse=folder)
    return parser.parse_args(words)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_record_behind_a_stopped_broker_is_not_called_gone(
    played: Played, monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    project = played.home.parent / f"project_{is_stopped}"
    (project / "topologies").mkdir(parents=True)
    (project / "topologies" / "play.toml").write_text(TOML)
    if is_stopped:
        (project / "broker").mkdir()  # as `down` leaves it
    monkeypatch.setenv("TIDEMARK_PROJECT", str(project))
    options = asked_in(project, "play", "--row", "board", "b")
    options.warehouse = played.home
    tracer, topics = tracer_and_topics(options, "board")
    stopped = "the broker of this machine does not run, and keeps its records; `tidemark up` starts it again"
    unknown = (
        "the Kafka cluster default has no address; write [kafka.default] in connections.toml, or give --bootstrap "
        "HOST:PORT, or start a broker on this machine with `tidemark up`"
    )
    why = stopped if is_stopped else unknown
    found = trace_row(tracer, "board", "b")
    assert [str(place) for place in found.places] == ["events/0/5"]
    assert (found.missing, found.why_missing, found.is_verified) == (1, [f"1 of events: {why}"], False)
    assert trace_command.row_as_text(found).splitlines()[-3:] == [
        "made of at least 1 record:",
        "  events/0/5",
        f"not verified: this record cannot be read again (1 of events: {why})",
    ]
    walked = tracer.trace(RecordPosition("events", 0, 0))
    assert (walked.timestamp_ms, walked.why_no_time) == (None, why)
    # The batch of the hop began 1 s after the clock of the one before, which is known without the record.
    assert [(times.sub_topology, times.waiting_ms) for times in walked.batches] == [("main", None), ("totals", 1_000)]
    lines = trace_command.as_text(walked).splitlines()
    assert lines[0] == f"events/0/0: its time, and so how long it waited for its first batch, is not known ({why})"
    assert ["main", "0", "-"] in [line.split()[:3] for line in lines]
    # Facts name no outcome of record 2 at the map: it was filtered out, or is another of the batch.
    reasons = [each.reason for each in tracer.trace(RecordPosition("events", 0, 2)).results]
    assert reasons[-1].endswith(f": {why}")
    with pytest.raises(InvalidArgument, match=f"events: its records cannot be counted again: {why[:40]}"):
        reconcile(tracer, topics.ends, "events", start_ms=ms(0), end_ms=ms(3_600))


def test_another_source_is_refused_with_those_there_are(played: Played) -> None:
    with pytest.raises(InvalidArgument, match="no sources 'orders'; known: events"):
        played.kept.tracer().trace(RecordPosition("orders", 0, 0))


@pytest.mark.parametrize(
    ("table", "key", "row", "places"),
    [
        ("board", "b", {"id": "b", "grp": "g", "v": 7}, ["events/0/5"]),
        ("newest", "b", {"grp": "g", "v": 7}, ["events/0/5"]),
        # 1 of a, 7 of b, 3 of z: the value 2 of b was retracted.
        ("totals", "g", {"grp": "g", "n": 3, "v": 11}, ["events/0/0", "events/0/5", "events/0/7"]),
        ("minutes", MINUTE, {"id": "a", "n": 2}, ["events/0/0", "events/0/3"]),
        ("per_minute", MINUTE, {"n": 2}, ["events/0/0", "events/0/3"]),
    ],
)
def test_a_row_names_its_records_and_they_make_it(
    played: Played, table: str, key: str, row: dict[str, object], places: list[str]
) -> None:
    found = trace_row(played.kept.tracer(), table, key)
    assert (found.row, [str(place) for place in found.places], found.is_verified) == (row, places, True)


def test_the_time_that_a_record_of_a_file_waited_is_unknown(tmp_path: Path) -> None:
    play = Play(orders_in_files("play", "orders/*.json"), tmp_path)
    play.batch([play.row("orders", ms(0), id="a")], at_ms=ms(5))
    found = KeptRecords(play).tracer().trace(RecordPosition("orders", 0, 0))
    assert found.document["why_no_time"] == "records of tables and files are not read again"
    assert [times["waiting_ms"] for times in found.document["batches"]] == [None]


def shown_and_traced(kept: KeptRecords, play: Play, id_: str) -> tuple[object, ...]:
    """Value, batch, version and verification of the row of *id_* in `board`, which are those of the view."""
    found = trace_row(kept.tracer(), "board", id_)
    text = "SELECT v, batch_id FROM board WHERE id = ?"
    assert [(found.row["v"], found.batch_id)] == [*Warehouse(play.home).ask(text, [id_]).rows]
    version = found.document["version"]
    assert version == first_version(play.table("board"), id_, found.batch_id)
    return found.row["v"], found.batch_id, version, found.is_verified


def first_version(table: Path, id_: str, batch_id: int) -> int | None:
    """The first version of *table* whose row of *id_* is of a batch."""
    for version in range(DeltaTable(str(table)).version() + 1):
        rows = DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist()
        if any((row["id"], row["batch_id"]) == (id_, batch_id) for row in rows):
            return version
    return None


def test_a_current_row_is_that_of_the_view_and_has_the_version_of_its_merge(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    kept = KeptRecords(play)

    def read(at_s: float, **values: int | None) -> None:
        rows = [play.row("events", ms(at_s - 0.5), id=id_, v=v) for id_, v in values.items()]
        play.batch(kept.keep(*({**row, "deleted": row["events"]["v"] is None} for row in rows)), at_ms=ms(at_s))

    with pytest.raises(InvalidArgument, match="it has no rows yet"):
        trace_row(kept.tracer(), "board", "a")
    read(1, a=0, b=0)  # version 1: the first batch is merged at once
    assert shown_and_traced(kept, play, "a") == (0, 0, 1, True)
    read(2, a=1, c=2)
    assert shown_and_traced(kept, play, "a") == (1, 1, None, True)
    assert shown_and_traced(kept, play, "b") == (0, 0, 1, True)
    assert shown_and_traced(kept, play, "c") == (2, 1, None, True)
    assert trace_row(kept.tracer(), "board", "a").commit is NoVersion.NOT_MERGED
    waiting = trace_command.row_as_text(trace_row(kept.tracer(), "board", "a")).splitlines()
    assert waiting[1] == "batch 1, which is not merged into a version of the table yet"
    of_record = kept.tracer().trace(RecordPosition("events", 0, 2))
    assert [(each.rows, each.commit) for each in of_record.visible] == [(1, NoVersion.NOT_MERGED)]
    assert trace_command.as_text(of_record).splitlines()[-1] == (
        "board: 1 row of batch 1, which is not merged into a version of the table yet"
    )
    read(3, b=None)
    with pytest.raises(InvalidArgument, match="board has no row whose key is or begins with b; one of its keys"):
        trace_row(kept.tracer(), "board", "b")
    read(61, d=4)  # version 2 has batches 1 to 3
    DeltaTable(str(play.table("board"))).optimize.compact()
    read(62, a=5)
    assert [shown_and_traced(kept, play, id_) for id_ in "acd"] == [
        (5, 4, None, True),
        (2, 1, 2, True),
        (4, 3, 2, True),
    ]
    play.settle()  # version 3 or later has batch 4
    assert shown_and_traced(kept, play, "a")[1] == 4
    assert trace_command.row_as_text(trace_row(kept.tracer(), "board", "c")).splitlines()[1] == "batch 1, version 2"


def test_a_version_is_not_named_where_commits_before_it_are_gone(tmp_path: Path) -> None:
    play = Play(BOARD, tmp_path)
    kept = KeptRecords(play)
    for second, id_ in ((1, "a"), (2, "b"), (61, "c")):
        play.batch(kept.keep(play.row("events", ms(second - 0.5), id=id_, v=1)), at_ms=ms(second))
    table = play.table("board")
    DeltaTable(str(table)).create_checkpoint()
    for version in (0, 1):
        commit_file(table, version).unlink()
    found = {id_: trace_row(kept.tracer(), "board", id_) for id_ in "abc"}
    # Version 2 is the merge of batch 2. Those of batches 0 and 1 may be of version 1, which is gone.
    assert {id_: (row.batch_id, row.document["version"], row.document["no_version"]) for id_, row in found.items()} == {
        "a": (0, None, "not_in_log"),
        "b": (1, None, "not_in_log"),
        "c": (2, 2, None),
    }
    said = trace_command.row_as_text(found["b"]).splitlines()[1]
    assert said == "batch 1, whose commit is no longer in the log of the table"


@pytest.mark.parametrize("keys", [{}, {"mode": "current", "key": ["id"]}])
@pytest.mark.parametrize("typed", ["NaN", '{"id":"Infinity"}', "1.5"])
def test_the_row_of_any_number_is_found(tmp_path: Path, keys: Mapping[str, object], typed: str) -> None:
    toml = topology_of(
        events=source("id double, v int"), newest=table(columns=["v"]), board=sink("newest", table="board", **keys)
    )
    play = Play(toml, tmp_path)
    kept = KeptRecords(play)
    for second in (1, 2):  # with current rows, the second batch is not merged
        rows = [play.row("events", ms(second - 0.5), id=id_, v=second) for id_ in (math.nan, math.inf, 1.5)]
        play.batch(kept.keep(*rows), at_ms=ms(second))
    found = trace_row(kept.tracer(), "board", typed)
    assert (found.row["v"], found.batch_id, found.is_verified) == (2, 1, True)
    is_merged = found.commit is not NoVersion.NOT_MERGED
    assert is_merged is not bool(keys)


def test_a_current_row_of_a_window_is_traced_before_it_is_merged(tmp_path: Path) -> None:
    play = Play(WINDOW_BOARD, tmp_path)
    kept = KeptRecords(play)
    for second in (1, 2, 3):
        play.batch(kept.keep(play.row("events", ms(second - 0.5), id="a", v=1)), at_ms=ms(second))
    found = trace_row(kept.tracer(), "board", "a")
    assert (found.row["v"], found.batch_id, found.commit, len(found.places), found.is_verified) == (
        3,
        2,
        NoVersion.NOT_MERGED,
        3,
        True,
    )


COMPOUND = topology_of(
    events=source("id string, grp string, v int", sub_topology="main"),
    newest=table("events", key=["grp", "id"], columns=["v"]),
    board=sink("newest", table="board"),
    per_minute=aggregate(
        "events", key=["grp", "id"], window={"tumbling": "1 min"}, aggregates={"n": "count(*)"}, strategy="on_update"
    ),
    minutes=sink("per_minute", table="minutes"),
    numbered=table("events", key=["v"], columns=["id"]),
    numbers=sink("numbered", table="numbers"),
)


@pytest.fixture(scope="module")
def compound(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Keys of several columns, one of them null, keys that begin with each other, and numbers as keys."""
    play = Played(tmp_path_factory.mktemp("compound"), COMPOUND)
    play.read(
        play.event(0, "a", 1, "UA"),
        play.event(1, "b", 2, "UA"),
        play.event(2, "a", 3, "UAX"),
        play.event(3, None, 12, "WN"),
        play.event(62, "a", 4, "UA"),
        at_s=65,
    )
    return play


@pytest.mark.parametrize(
    ("table", "typed", "key", "offset"),
    [
        ("board", '{"grp":"UA","id":"b"}', '{"grp":"UA","id":"b"}', 1),
        ("newest", '{"grp":"UA","id":"b"}', '{"grp":"UA","id":"b"}', 1),
        # Order and blanks of an object mean nothing, and columns may be left out.
        ("board", ' { "id": "b", "grp": "UA" } ', '{"grp":"UA","id":"b"}', 1),
        ("newest", ' { "id": "b", "grp": "UA" } ', '{"grp":"UA","id":"b"}', 1),
        ("board", '{"id":"b"}', '{"grp":"UA","id":"b"}', 1),
        ("newest", '{"id":"b"}', '{"grp":"UA","id":"b"}', 1),
        ("board", '{"id":null}', '{"grp":"WN","id":null}', 3),
        ("newest", '{"id":null}', '{"grp":"WN","id":null}', 3),
        # Text is the first column, or its beginning.
        ("board", "WN", '{"grp":"WN","id":null}', 3),
        ("board", "W", '{"grp":"WN","id":null}', 3),
        ("newest", "W", '{"grp":"WN","id":null}', 3),
        ("board", "UAX", '{"grp":"UAX","id":"a"}', 2),
        # A whole value counts before those that begin with it: 1 and 12.
        ("numbers", "1", "1", 0),
        ("numbered", "1", "1", 0),
        ("numbers", "12", "12", 3),
        # The bound of a window is a number, or an instant as the table has it.
        ("minutes", f'{{"grp":"UA","id":"a","window_start":{NOON_MS}}}', f'"window_start":{NOON_MS}', 0),
        ("minutes", '{"grp":"UA","window_start":"2014-05-13T12:01Z"}', f'"window_start":{NOON_MS + 60_000}', 4),
        ("per_minute", '{"grp":"UA","window_start":"2014-05-13T12:01Z"}', f'"window_start":{NOON_MS + 60_000}', 4),
    ],
)
def test_a_key_is_named_by_its_columns_or_its_beginning(
    compound: Played, table: str, typed: str, key: str, offset: int
) -> None:
    found = trace_row(compound.kept.tracer(), table, typed)
    assert (key in found.key, [str(place) for place in found.places], found.is_verified) == (
        True,
        [f"events/0/{offset}"],
        True,
    )


@pytest.mark.parametrize(
    ("table", "typed", "said"),
    [
        ("board", "UA", 'UA fits 2 keys (grp, id) of board; name one:\n{"grp":"UA","id":"a"}\n{"grp":"UA","id":"b"}'),
        ("newest", "UA", 'UA fits 2 keys (grp, id) of newest; name one:\n{"grp":"UA","id":"a"}\n{"grp":"UA","id":"b"}'),
        ("board", "U", "U fits 3 keys (grp, id) of board; name one:"),
        ("board", "x", 'board has no row whose key is or begins with x; one of its keys (grp, id) is {"grp":"'),
        ("newest", "x", 'newest has no row whose key is or begins with x; one of its keys (grp, id) is {"grp":"'),
        ("numbers", "x", "numbers has no row whose key is or begins with x; one of its keys (v) is 1"),
        ("board", '{"grp":"x"}', 'board has no row whose key has {"grp":"x"}; one of its keys (grp, id) is'),
        ("board", '{"colour":"x"}', "colour is not in the key, which has the columns grp, id"),
        ("numbers", '{"v":1.5}', "v is 1.5, and its column has the type Int32"),
        ("numbers", '{"v":"x"}', 'v is "x", and its column has the type Int32'),
        ("minutes", '{"window_start":"noon"}', "an instant must be in ISO 8601, got 'noon'"),
        (
            "bord",
            "x",
            "play has no table 'bord' with a key; known: board, minutes, numbers, newest, per_minute, numbered",
        ),
    ],
)
def test_a_key_that_is_not_one_says_which_there_are(compound: Played, table: str, typed: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        trace_row(compound.kept.tracer(), table, typed)
    assert str(error.value).startswith(said)


def test_a_table_without_rows_has_no_key(tmp_path: Path) -> None:
    play = Played(tmp_path, COMPOUND)
    for name in ("board", "newest"):
        with pytest.raises(
            InvalidArgument, match=f"{name} has no row whose key is or begins with UA; it has no rows yet"
        ):
            trace_row(play.kept.tracer(), name, "UA")


def test_the_documented_rows_are_found_and_verified(tmp_path: Path) -> None:
    play = Play((CHECKOUT / "jobs" / "topologies" / "flights.toml").read_text(), tmp_path)
    kept = KeptRecords(play)

    def flight(at_s: float, number: int, origin: str, delay_min: float) -> Row:
        id_ = f"UA{number}-2013-06-27-{origin}"
        fields = {"flight": id_, "carrier": "UA", "origin": origin, "status": "departed", "dep_delay_min": delay_min}
        return play.row("flight_events", ms(at_s), key=id_, **fields)

    weather = play.row("weather", ms(0), key="EWR", origin="EWR", temp_f=80.0)
    rows = [weather, flight(1, 753, "EWR", 50), flight(2, 754, "EWR", 40), flight(3, 755, "EWR", 60)]
    play.batch(kept.keep(*rows, flight(4, 7, "JFK", 5)), at_ms=ms(6), sub="status")
    play.hop("carriers", at_ms=ms(7))
    asked = {variant[3]: variant[4] for variant in shown_traces() if variant[2] == "--row"}
    found = {table: trace_row(kept.tracer(), table, key) for table, key in asked.items()}
    assert {table: (row.key, row.is_verified, len(row.places)) for table, row in found.items()} == {
        # Its record, and the weather that the join added to it.
        "flight_board": ("UA753-2013-06-27-EWR", True, 2),
        # Three flights of UA from EWR, with delays of 50 min on average, and their weather.
        "carrier_state": ('{"carrier":"UA","origin":"EWR"}', True, 4),
    }
    assert found["carrier_state"].row == {"delay_band": "severe"}


def shown_traces() -> list[list[str]]:
    """The words of each `tidemark trace TOPOLOGY OPTION …` that a page or a help shows as a whole."""
    shown = [words for each in shown_commands() if not each.in_text for words in variants(each.text)]
    return [words for words in shown if words[0] == "trace"]


def test_a_record_that_moved_a_row_counts_in_its_new_group(tmp_path: Path) -> None:
    play = Played(tmp_path)
    play.read(play.event(0, "a", 1), play.event(1, "b", 2), play.event(2, "c", 4, "h"), at_s=5)
    play.read(play.event(3, "a", 1, "h"), at_s=6)
    play.hop("totals", at_ms=ms(7))
    tracer = play.kept.tracer()
    # Record 3 is the cause of both rows: it leaves g and comes to h.
    places = {key: [str(place) for place in trace_row(tracer, "totals", key).places] for key in "gh"}
    assert places == {"g": ["events/0/1"], "h": ["events/0/2", "events/0/3"]}


def test_a_row_of_an_empty_group_names_who_left_it(tmp_path: Path) -> None:
    play = Played(tmp_path)
    play.read(play.event(0, "a", 1), play.event(1, "b", 2), play.event(2, "c", 4, "h"), at_s=5)
    play.read(play.event(3, "a", 1, "h"), at_s=6)
    play.read(play.event(4, "b", 2, "h"), at_s=7)
    play.hop("totals", at_ms=ms(8))
    found = trace_row(play.kept.tracer(), "totals", "g")
    assert (found.row, found.is_verified) == ({"grp": "g", "n": 0, "v": None}, True)
    assert [str(place) for place in found.places] == ["events/0/1", "events/0/4"]
    # `retention` removes rows of hops.
    DeltaTable(str(play.table("hop_by_grp"))).delete()
    assert trace_row(play.kept.tracer(), "totals", "g").places == []


def test_only_the_records_of_a_row_are_read_again(played: Played) -> None:
    played.kept.asked = 0
    trace_row(played.kept.tracer(), "totals", "g")
    assert played.kept.asked == 3


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_row_that_others_changed_is_not_verified(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    DeltaTable(str(play.table("board"))).update({"v": "99"}, predicate="id = 'a'")
    found = trace_row(play.kept.tracer(), "board", "a")
    assert (found.differences, found.is_verified) == (["v"], False)


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_row_of_records_that_are_gone_says_how_many(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    play.kept.gone = {("events", 0, 0)}
    found = trace_row(play.kept.tracer(), "board", "a")
    assert ([str(place) for place in found.places], found.missing, found.is_verified) == (["events/0/0"], 1, False)


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_joined_row_has_the_record_of_the_version_too(tmp_path: Path) -> None:
    toml = topology_of(
        prices=source("id string, price int", topic="prices", sub_topology="main"),
        price_now=table("prices", columns=["price"]),
        events=source("id string, grp string, v int"),
        priced=join("events", "price_now", on={"id": "id"}),
        newest=table("priced", columns=["v", "price"]),
        board=sink("newest", table="board"),
    )
    play = Played(tmp_path, toml)
    price = [play.row("prices", ms(at), id="a", price=n) for at, n in ((0, 10), (1, 10), (8, 30))]
    play.read(*price, play.event(5, "a", 1), at_s=9)
    found = trace_row(play.kept.tracer(), "board", "a")
    # At 5 s the price of 1 s holds, which only repeats that of 0 s.
    assert [str(place) for place in found.places] == ["events/0/0", "prices/0/0"]
    assert (found.row["price"], found.is_verified) == (10, True)


def test_an_hour_is_whole_from_the_broker_to_the_tables(played: Played) -> None:
    found = reconcile(played.kept.tracer(), played.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    counts = {(count.stage, count.hour_ms): (count.records, count.outcomes) for count in found.counts}
    hour = ms(0)
    assert counts["broker", hour] == (9, {})
    assert counts["events", hour] == (9, {"passed": 9})
    assert counts["events", None] == (1, {"quarantined": 1})
    assert counts["mapped", hour] == (9, {"passed": 8, "filtered": 1})
    assert counts["newest", hour] == (8, {"emitted": 4, "suppressed": 3, "quarantined": 1})
    assert counts["per_minute", hour] == (
        8,
        {"emitted": 2, "superseded": 2, "held": 1, "late": 2, "quarantined": 1},
    )
    assert counts["by_grp", hour] == (4, {"emitted": 4})
    assert counts["total", hour] == (4, {"emitted": 4})
    assert counts["table board", hour] == counts["table totals", hour] == (4, {})
    assert counts["table minutes", hour] == (2, {})
    assert found.differences == []
    # The watermark is in the second minute of the hour.
    assert (found.is_whole, found.conclusion) == (
        False,
        "every count agrees so far; the watermark has not passed the end, so more records may come",
    )
    minute = reconcile(played.kept.tracer(), played.broker.offsets, "events", start_ms=ms(0), end_ms=ms(60))
    assert (minute.is_whole, minute.conclusion) == (True, "whole: every count agrees")


def test_a_record_whose_time_is_out_of_range_is_counted_without_an_hour(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    absurd = bad("timestamp_out_of_range")(play) | {"timestamp_ms": 7}
    play.read(play.event(0, "a", 1), absurd, at_s=5)
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    counts = {(count.stage, count.hour_ms): (count.records, count.outcomes) for count in found.counts}
    assert (counts["broker", ms(0)], counts["broker", None]) == ((1, {}), (1, {}))
    assert (counts["events", ms(0)], counts["events", None]) == ((1, {"passed": 1}), (1, {"quarantined": 1}))


@pytest.mark.parametrize(
    ("hour", "conclusion"),
    [
        (-1, "no records: neither the broker nor the stream has one of this span"),
        (24, "no records so far; the watermark has not passed the end, so more records may come"),
    ],
)
def test_a_span_without_records_is_called_empty(played: Played, hour: int, conclusion: str) -> None:
    span = {"start_ms": ms(hour * 3_600), "end_ms": ms((hour + 1) * 3_600)}
    found = reconcile(played.kept.tracer(), played.broker.offsets, "events", **span)
    found.counts[:] = [count for count in found.counts if count.hour_ms is not None]
    assert (found.counts, found.is_whole, found.conclusion) == ([], hour == -1, conclusion)


def test_a_missing_row_and_a_missing_fact_are_named(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), play.event(1, "b", 2), at_s=5)
    DeltaTable(str(play.table("board"))).delete("id = 'b'")
    span = {"start_ms": ms(0), "end_ms": ms(3_600)}
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", **span)
    assert found.differences == [
        "board, hour 2014-05-13T12:00:00.000Z, partition 0: 1 row, 1 fewer than the 2 that board handed on"
    ]
    DeltaTable(str(play.table("changes"))).delete("operator = 'newest' and key = 'b'")
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", **span)
    assert found.differences[0] == (
        "newest, batch 0: 1 update is neither emitted nor suppressed nor set aside, and operator_batches counts 0 "
        "superseded ones"
    )


def test_a_batch_that_mixes_hours_has_no_difference(tmp_path: Path) -> None:
    toml = topology_of(
        events=source("id string, grp string, v int", sub_topology="main"),
        total=aggregate("events", key=["id"], aggregates={"n": "count(*)"}),
    )
    play = Played(tmp_path, toml)
    play.read(play.event(3_700, "a", 1), play.event(10, "a", 2), at_s=3_701)
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    # The result with the record of 12 h has the time of the newest one, of 13 h.
    assert [count.outcomes for count in found.counts if count.stage == "total"] == [{"emitted": 1}]
    assert found.differences == []


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_a_row_too_many_is_named_beside_gaps_of_the_topic(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(*(play.event(n, id_, n + 1) for n, id_ in enumerate("abc")), at_s=5)
    play.kept.gone = {("events", 0, 1)}  # compacted
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    assert found.differences == []
    row = scan(play.table("board")).filter(pl.col("source_offset") == 0).with_columns(source_offset=pl.lit(77))
    append(play.table("board"), row.collect().to_arrow())
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    assert found.differences == [
        "board, hour 2014-05-13T12:00:00.000Z, partition 0: 3 rows, 1 more than the 2 that board handed on"
    ]


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_unread_records_of_the_hour_are_a_difference(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), at_s=5)
    play.broker.have("events", play.kept.keep(play.event(2, "a", 3)))
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    assert found.differences == [
        "events, partition 0: 1 record of offsets 1 to 1 is at the broker and not read yet",
    ]


@pytest.mark.long  # a stream of its own; the walk is guarded by the other tests
def test_what_the_broker_has_deleted_is_said_and_no_difference(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    play.read(play.event(0, "a", 1), play.event(1, "b", 2), at_s=5)
    play.broker.earliest, play.kept.gone = 1, {("events", 0, 0)}
    found = reconcile(play.kept.tracer(), play.broker.offsets, "events", start_ms=ms(0), end_ms=ms(3_600))
    assert found.differences == []
    assert found.remarks[0] == (
        "events, partition 0: the broker has deleted offsets 0 to 0 of batch 0; they are not counted again"
    )


def test_another_hour_is_not_read_again(played: Played) -> None:
    played.kept.asked = 0
    later = reconcile(played.kept.tracer(), played.broker.offsets, "events", start_ms=ms(7_200), end_ms=ms(10_800))
    # Batches whose times of records lie elsewhere are left out.
    assert (played.kept.asked, later.counts, later.differences) == (0, [], [])


def test_a_source_that_has_read_nothing_is_not_called_whole(tmp_path: Path) -> None:
    play = Played(tmp_path, SIMPLE)
    with pytest.raises(InvalidArgument, match="events has read nothing yet, so there is nothing to count"):
        reconcile(play.kept.tracer(), lambda source, partitions: {}, "events", start_ms=ms(0), end_ms=ms(3_600))
