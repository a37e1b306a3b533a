"""Bounds are compared over what the batches of a stream wrote down."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import tidemark
from support.play import Play
from support.quiet_broker import Ends
from support.topologies import sink, source, topology_of
from tidemark.errors import InvalidArgument
from tidemark.facts.history import ChartSpan, history
from tidemark.model.project.layout import Layout
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.bound import bound_document
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_page import operator_page
from tidemark.reports.promises import Promises
from tidemark.why.walk import scene

NOON = 1_399_982_400_000
TOML = topology_of(events=source("id string, amount double"), board=sink("events", table="board"))


def ms(seconds: int) -> int:
    return NOON + seconds * 1_000


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Plays two batches with late records and one ahead.

    The first brings time to 12:00:05; records of the second are 0, 2 and 5 s behind that.
    """
    played = Play(TOML, tmp_path)
    for at_s, times in ((10, [5]), (20, [5, 3, 0, 6])):
        played.batch([played.row("events", ms(time), amount=1.0) for time in times], at_ms=ms(at_s))
    return played


def test_bounds_are_compared_over_a_stream_s_batches(play: Play) -> None:
    rows = bound_document(play.home, play.topology)["bounds"]
    costs = {row["choice"]: (row["bound_ms"], row["records"], row["late"]) for row in rows}
    assert costs["none"] == (0, 5, 2)
    assert costs["current"] == (1_000, 5, 2)
    bound_ms, _, late = costs["100 % in time"]
    assert late == 0
    assert bound_ms == pytest.approx(5_000, rel=0.02)


def test_the_command_and_the_page_say_which_records_a_bound_counts_as_late(play: Play) -> None:
    counted = "behind the time that its source had reached before its batch, the newest of the partition"
    file = play.home / "play.toml"
    file.write_text(play.toml)
    for options, says in (((), True), (("--format", "json"), False)):
        answer = tidemark(play.home, "--warehouse", str(play.home), "bound", str(file), *options)
        assert (answer.returncode, counted in " ".join(answer.stdout.split())) == (0, says), answer.stderr
    tables, at_ms = Warehouse(play.home, topology="play"), ms(30)
    model = page_model(tables, Layout(play.home), play.topology, Promises(), at_ms=at_ms, operator="events")
    past = history(tables, "play", ["events"], ChartSpan.HOUR, at_ms=at_ms)
    bounds = bound_document(play.home, play.topology)["bounds"]
    document = topology_facts(tables, scene(play.topology, Layout(play.home), at_ms, stored=tables.stored))
    assert counted in operator_page(model, document, play.topology, "events", past, bounds)


def test_bounds_use_only_batches_of_the_decision_interval(play: Play) -> None:
    home = play.home
    for interval, records in (({"end_ms": ms(20)}, 1), ({"start_ms": ms(20)}, 4), ({"start_ms": ms(21)}, None)):
        rows = bound_document(home, play.topology, source="events", **interval)["bounds"]
        assert {row["records"] for row in rows} == ({records} if records else set())


def test_an_unknown_source_is_refused_and_sources_are_listed(play: Play) -> None:
    with pytest.raises(InvalidArgument, match="play has no source 'event'; known: events"):
        bound_document(play.home, play.topology, source="event")


@pytest.mark.parametrize("was_idle", [False, True])
def test_records_that_waited_for_a_driver_need_no_longer_bound(tmp_path: Path, *, was_idle: bool) -> None:
    """Nothing is read from 12:00:20 to 12:05:20.

    Then partition 0 is read, and partition 1 in the batch after.
    """
    played = Play(TOML.replace("[operators.board]", 'idle_after = "5 s"\n[operators.board]'), tmp_path, partitions=2)
    played.broker = broker = Ends(2)
    first = [played.row("events", ms(1), partition=1)] if was_idle else []
    played.batch([*first, played.row("events", ms(2))], at_ms=ms(2))
    for second in (10, 16, 20):
        more = [] if was_idle else [played.row("events", ms(second), partition=1)]
        played.batch([*more, played.row("events", ms(second))], at_ms=ms(second))
    waited = [[played.row("events", ms(s), partition=p) for s in range(21, 320)] for p in (0, 1)]
    broker.ends = {1: waited[1][-1]["offset"] + 1}
    played.batch(waited[0], at_ms=ms(320))
    played.batch(waited[1], at_ms=ms(321))
    rows = {row["choice"]: row for row in bound_document(played.home, played.topology)["bounds"]}
    assert rows["100 % in time"]["bound_ms"] == 0
    assert rows["current"]["late"] == 0
