"""`tidemark begin`: an operator whose meaning has changed begins without its states, and `tidemark plan` says so."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace as replace_fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from support.command_line import tidemark
from support.play import Play, ms
from support.separate_executors import Apart
from support.topologies import aggregate, current, repartition, sink, source, topology_of
from tidemark.cli.explain.complete import as_line
from tidemark.cli.project.plan import changes_of_topology, lines_of, status_of
from tidemark.cli.repair.begin import begin_plan
from tidemark.cli.shared.plan import PlanChanged
from tidemark.control import folder
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.facts.history import history
from tidemark.facts.latency_places import ChartSpan
from tidemark.facts.topology_changes import DECIDED, RecordedChange, changes_by_operator, topology_changes
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.tables.catalog import BECAME, CAME_IN, DECISIONS
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.path import path_document
from tidemark.reports.pages.interval_page import write_pages
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.pages.topology_facts import topology_facts
from tidemark.reports.pages.topology_page import operator_page, topology_page
from tidemark.reports.promises import Promises
from tidemark.reports.repairs import RepairDecision, record_repair
from tidemark.semantics.repairs import RepairOutcome
from tidemark.storage.delta.tables import scan
from tidemark.storage.location import replace
from tidemark.stream.shards import resharding
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Fault, Inconsistency, findings
from tidemark.stream.startup.source_list import follow
from tidemark.stream.startup.state_compatibility import meanings
from tidemark.stream.state import files as state_files
from tidemark.why.intervals import interval_state, with_changes
from tidemark.why.walk import scene

TOML = topology_of(
    events=source("id string, v bigint"),
    totals=aggregate(key=["id"], aggregates={"total": "sum(v)"}),
    board=current("totals", "board", complete={"every": "10 s"}),
    dealt=repartition("totals", id=["id"], key=["id"], columns=["total"]),
    sums=aggregate("dealt", aggregates={"together": "sum(total)"}),
    counts=aggregate(key=["id"], aggregates={"n": "count(*)"}),
    log=sink("counts", table="log"),
)
OF_MAXIMUM = TOML.replace("sum(v)", "max(v)")
assert OF_MAXIMUM != TOML


def start(play: Play, *, shards: int = 1) -> Play:
    """Starts a driver as `run.py` does."""
    play.in_shards(shards, Apart).start()
    for sub in play.topology.sub_topologies:
        control = Control(play.stream(sub.name).control)
        control.home.mkdir(parents=True, exist_ok=True)
        control.keep_meanings(meanings(sub))
        follow(control, sub, -1)
    return play


def continued(before: Play, toml: str) -> Play:
    """Returns the play of *toml* that goes on where *before* stopped."""
    play = Play(toml, before.home)
    play.resume(before._batches, before._offsets)
    play.broker = before.broker
    return play


def batch(play: Play, at_s: float, **values: int) -> None:
    """Lets both streams have a batch."""
    play.batch([play.row("events", ms(at_s), id=id_, v=v) for id_, v in values.items()], at_ms=ms(at_s + 0.1))
    play.hop("dealt", at_ms=ms(at_s + 0.2))


def values(play: Play, operator: str, sub: str = "events") -> list[tuple[int, str, Any]]:
    """Returns batch, key and value of each change of *operator*."""
    rows = [row for row in play.rows("changes", sub) if row["operator"] == operator]
    found = [(row["batch_id"], row["key"], None if row["value"] is None else json.loads(row["value"])) for row in rows]
    return sorted(found, key=str)


def recorded(play: Play, sub: str = "events") -> list[tuple[int, str, str]]:
    """Returns the changes of the topology that batches have recorded."""
    return [(row["batch_id"], row["operator"], row["told"]) for row in play.rows("topology_changes", sub)]


def refused(play: Play) -> list[Inconsistency]:
    """Returns the changes of the file for which no driver starts."""
    found = findings(evidence(play.stream("events")))
    return [each for each in found if each.fault is Fault.TOPOLOGY_CHANGED]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], Play]:
    """Returns copies of a play of two batches, in a number of shards."""
    homes: dict[int, Play] = {}
    for shards in (1, 3):
        play = homes[shards] = start(Play(TOML, tmp_path_factory.mktemp(f"in_{shards}") / "w"), shards=shards)
        batch(play, 0, a=1, b=2)
        batch(play, 1, a=3)

    def copy(home: Path, shards: int) -> Play:
        shutil.copytree(homes[shards].home, home)
        changed = Play(OF_MAXIMUM, home)
        changed.resume(homes[shards]._batches, homes[shards]._offsets)
        changed.broker = homes[shards].broker.copy()
        return changed.in_shards(shards, Apart)

    return copy


@pytest.mark.parametrize("shards", [1, 3])
def test_an_operator_begins_with_the_sums_behind_it_and_the_others_go_on(
    tmp_path: Path, played: Callable[[Path, int], Play], shards: int
) -> None:
    play = played(tmp_path / "w", shards)
    layout = Layout(play.home)
    changes = changes_of_topology(play.topology, layout)
    assert status_of(changes) == 4
    assert lines_of("play", changes) == [
        "play: 7 go on, 1 needs consent",
        "  needs consent: events/totals: operators.totals.aggregates.total: was sum(v), is max(v)",
        "    tidemark begin play totals",
    ]
    (finding,) = refused(play)
    assert finding.ways[0] == "let it begin anew: tidemark begin play totals"

    plan = begin_plan(play.topology, play.home, "totals")
    assert plan.effect == (
        "play/events: totals, dealt begin anew behind batch 1, and their former rows stay\n"
        "play/dealt: sums begins anew behind batch 1, and its former rows stay\n"
        "go on behind it: board, dealt_source\n"
        "board has one row per id: a new row replaces a former one"
    )
    plan.apply()
    assert refused(play) == []
    assert status_of(changes_of_topology(play.topology, layout)) == 0
    start(play, shards=shards)
    batch(play, 2, a=2)
    batch(play, 3, a=1, b=9)
    # Before there were the sums 1 and 4 of a, and 2 of b. Then 2 is the greatest; of a later instant it is an update.
    of_a, of_b = [(0, 1), (1, 4), (2, 2), (3, 2)], [(0, 2), (3, 9)]
    for operator, sub, column, expected in (
        ("totals", "events", "total", of_a),
        ("sums", "dealt", "together", of_a[:3]),
    ):
        found = values(play, operator, sub)
        # The repartition before the sums does not send an equal value again.
        assert [(batch_id, value[column]) for batch_id, key, value in found if key == "a"] == expected
        assert [(batch_id, value[column]) for batch_id, key, value in found if key == "b"] == of_b
    assert [(batch_id, value["n"]) for batch_id, key, value in values(play, "counts") if key == "a"] == [
        (0, 1), (1, 2), (2, 3), (3, 4),
    ]  # fmt: skip
    assert sorted((row["id"], row["total"]) for row in play.rows("board")) == [("a", 2), ("b", 9)]
    assert recorded(play) == [
        (2, "totals", "totals begins anew: aggregates.total: was sum(v), is max(v)"),
        (2, "dealt", "dealt begins anew with totals"),
    ]
    assert recorded(play, "dealt") == [(2, "sums", "sums begins anew with totals")]
    meanings_of = "SELECT operator, meaning, begun_with, count(*) FROM changes_by_meaning WHERE operator <> 'dealt' "
    assert Warehouse(play.home).ask(f"{meanings_of} GROUP BY ALL ORDER BY ALL").rows == (
        ("counts", 1, None, 6), ("sums", 1, None, 3), ("sums", 2, 2, 2), ("totals", 1, None, 3), ("totals", 2, 2, 3),
    )  # fmt: skip
    for row in play.rows("operator_batches"):
        assert sum(row[word] for word in CAME_IN) == sum(row[word] for word in BECAME), row


def test_a_renamed_stream_is_refused_with_those_that_read_it(
    tmp_path: Path, played: Callable[[Path, int], Play]
) -> None:
    """A driver behind it would begin with the hop of the new name, and under the old one read all of that again."""
    of_other_name = TOML.replace("[operators.events]", '[operators.events]\nsub_topology = "other"')
    play = continued(played(tmp_path / "w", 1), of_other_name)
    changes = changes_of_topology(play.topology, Layout(play.home))
    assert lines_of("play", changes) == [
        "play: 1 goes on, 2 are refused",
        "  refused: other/events: its sources were read by the stream events",
        '    write sub_topology = "events" below [operators.events]',
        "  refused: dealt/dealt_source: it reads the stream other, whose sources were read by the stream events",
        '    write sub_topology = "events" below [operators.events]',
    ]
    for sub in ("other", "dealt"):
        (finding,) = [each for each in findings(evidence(play.stream(sub))) if each.fault is Fault.STREAM_RENAMED]
        assert finding.ways[0] == (
            'write sub_topology = "events" below [operators.events], to continue under the old name'
        )


def test_a_begin_that_is_interrupted_is_done_again(
    tmp_path: Path, played: Callable[[Path, int], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each write of the command it ends, is run again, and the stream goes on as without that."""
    for at in count():
        play, writes = played(tmp_path / str(at), 1), count()

        def put(really: Callable[..., None], *given: Any, at: int = at, writes: Any = writes, **more: Any) -> None:
            is_of_lease = isinstance(given[0], Path) and given[0].name not in {"begun.json", "meanings.json"}
            if not (really is replace and is_of_lease) and next(writes) == at:
                raise KeyboardInterrupt
            really(*given, **more)

        with monkeypatch.context() as patched:
            for module, name in ((state_files, "put_written"), (resharding, "put_once"), (folder, "replace")):
                really = getattr(module, name)
                patched.setattr(module, name, lambda *g, r=really, **m: put(r, *g, **m))
            try:
                begin_plan(play.topology, play.home, "totals").apply()
                done = True
            except KeyboardInterrupt:
                done = False
        if not done:
            begin_plan(play.topology, play.home, "totals").apply()
        assert refused(play) == []
        start(play)
        batch(play, 2, a=2)
        assert values(play, "totals")[-1] == (2, "a", {"total": 2})
        assert [value["together"] for _, key, value in values(play, "sums", "dealt") if key == "a"] == [1, 4, 2]
        assert [[row[:2] for row in recorded(play, sub)] for sub in ("events", "dealt")] == [
            [(2, "totals"), (2, "dealt")],
            [(2, "sums")],
        ]
        if done:
            break
    assert at >= 6  # of each stream the list of its states, what began, and what it means now


def test_two_operators_begin_one_after_the_other_also_if_the_written_states_are_gone(
    tmp_path: Path, played: Callable[[Path, int], Play]
) -> None:
    """What began is known beside the states that were written without it."""
    before = played(tmp_path / "w", 1)
    play = continued(before, OF_MAXIMUM.replace("count(*)", "sum(v)"))
    for operator in ("totals", "counts"):
        assert len(refused(play)) == (2 if operator == "totals" else 1)
        begin_plan(play.topology, play.home, operator).apply()
    resharding.forget(play.control.home)
    start(play)
    batch(play, 2, a=2)
    assert values(play, "totals")[-1] == (2, "a", {"total": 2})
    assert values(play, "counts")[-1] == (2, "a", {"n": 2})


def test_a_begin_that_ends_between_two_streams_is_refused_until_it_is_done(
    tmp_path: Path, played: Callable[[Path, int], Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = played(tmp_path / "w", 1)
    parts = count()

    def once(*given: Any, really: Callable[..., Any] = Control.begin_anew) -> None:
        if next(parts):
            raise KeyboardInterrupt
        really(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Control, "begin_anew", once)
        with pytest.raises(KeyboardInterrupt):
            begin_plan(play.topology, play.home, "totals").apply()
    assert len(refused(play)) == 1
    begin_plan(play.topology, play.home, "totals").apply()
    start(play)
    batch(play, 2, a=2)
    assert values(play, "sums", "dealt")[-1] == (2, "a", {"together": 2})


def test_sums_begin_with_a_repartition_that_returns(tmp_path: Path) -> None:
    play = start(Play(TOML, tmp_path / "w"))
    batch(play, 0, a=1)
    without = TOML[: TOML.index("[operators.dealt]")] + TOML[TOML.index("[operators.counts]") :]
    play = start(continued(play, without))
    play.batch([play.row("events", ms(1), id="a", v=2)], at_ms=ms(1.1))
    play = continued(play, TOML)
    (finding,) = refused(play)
    left_out = "operators.dealt: was left out of the file, and sums kept what it had sent, is a repartition of id"
    assert finding.seen.startswith(left_out)
    begin_plan(play.topology, play.home, "dealt").apply()
    assert refused(play) == []
    start(play)
    batch(play, 2, a=4)
    # The totals of a are 1, 3 and 7. With its former states the sum would be 8.
    assert [value["together"] for _, _, value in values(play, "sums", "dealt")] == [1, 7]


def test_a_source_that_returns_is_read_again_without_consent(tmp_path: Path) -> None:
    """It keeps nothing that could begin anew, though sums behind it went on."""

    def file(*names: str) -> str:
        sources = {name: source(topic=name) for name in names}
        sums = aggregate("all", key=["id"], aggregates={"n": "count(*)"})
        return topology_of(**sources, all={"kind": "union", "inputs": [*names]}, sums=sums)

    play = start(Play(file("events", "more"), tmp_path / "w"))
    play.batch([play.row(name, ms(0), id="a", v=1) for name in ("events", "more")], at_ms=ms(0.1))
    play = Play(file("events"), play.home)
    play.resume({"events": 1}, {("events", 0): 1})
    start(play).batch([play.row("events", ms(1), id="a", v=2)], at_ms=ms(1.1))
    assert refused(Play(file("events", "more"), play.home)) == []


def test_former_rows_can_be_dropped(tmp_path: Path, played: Callable[[Path, int], Play]) -> None:
    play = played(tmp_path / "w", 1)
    done = begin_plan(play.topology, play.home, "totals", drop_rows=True).apply()
    assert [line.rpartition("their " if "their" in line else "its ")[2] for line in done.splitlines()] == [
        "former rows of `changes` are deleted (3 rows)"
    ] * 2
    assert {row["operator"] for row in play.rows("changes")} == {"counts"}
    start(play)
    batch(play, 2, a=2)
    assert values(play, "totals") == [(2, "a", {"total": 2})]


def test_a_begin_refuses_what_cannot_be(tmp_path: Path, played: Callable[[Path, int], Play]) -> None:
    play = played(tmp_path / "w", 1)
    with pytest.raises(InvalidArgument, match=r"^events: is no operator of play that keeps states; those are: totals,"):
        begin_plan(play.topology, play.home, "events")
    plan = begin_plan(play.topology, play.home, "totals")
    start(continued(play, TOML))
    former = continued(play, TOML)
    batch(former.in_shards(1, Apart), 2, a=1)
    with pytest.raises(PlanChanged, match="it has decided another batch since"):
        plan.apply()


def test_the_commands_show_the_plan_and_record_the_decision(
    tmp_path: Path, played: Callable[[Path, int], Play]
) -> None:
    play = played(tmp_path / "w", 1)
    (tmp_path / "play.toml").write_text(OF_MAXIMUM)
    decisions = Layout(play.home).report_table("play", DECISIONS.name)

    def command(*words: str) -> tuple[int, str]:
        code, out, err = tidemark(tmp_path, "--warehouse", str(play.home), *words)
        return code, out + err

    shown_at_first = command("plan", "play.toml")[1]
    assert not decisions.exists()
    assert command("plan", "play.toml", "--by", "Bea", "--note", "review 7") == (4, shown_at_first)
    code, text = command("plan", "play.toml", "--json")
    told = json.loads(text)
    assert (code, told["status"]) == (4, 4)
    assert [each["operator"] for each in told["operators"] if each["fate"] == "needs consent"] == ["totals"]
    code, text = command("check", "play.toml")
    of_plan = "plan of play: 7 go on, 1 needs consent: tidemark begin play totals (tidemark plan play)"
    assert (code, text.splitlines()[-1]) == (0, of_plan)
    code, text = command("begin", "play.toml", "totals", "--dry-run")
    assert code == 0
    shown = text.rpartition("--plan ")[2].strip()
    assert command("begin", "play.toml", "totals", "--plan", "000000000000")[0] == 4
    code, text = command("begin", "play.toml", "totals", "--plan", shown, "--by", "Ann", "--note", "the maximum")
    assert code == 0, text
    assert command("plan", "play.toml", "--by", "Bea") == (0, "play: 8 go on\n")
    of_plan, of_begin = scan(decisions).sort("decided_at").collect().to_dicts()
    assert (of_begin["decision"], of_begin["decided_by"], of_begin["note"]) == ("begin", "Ann", "the maximum")
    assert (of_plan["decision"], of_plan["decided_by"], of_plan["note"]) == ("plan", "Bea", "review 7")
    assert (of_plan["outcome"], of_plan["effect"], of_plan["result"]) == ("shown", shown_at_first.strip(), None)
    on_page = Warehouse(play.home, topology="play").ask(DECIDED, ["play", 0, 2**45]).objects
    assert [(row["decision"], row["decided_by"]) for row in on_page] == [("begin", "Ann"), ("plan", "Bea")]


def test_whoever_reads_numbers_sees_where_the_new_meaning_begins(
    tmp_path: Path, played: Callable[[Path, int], Play]
) -> None:
    play = played(tmp_path / "w", 1)
    layout, topology, tables = Layout(play.home), play.topology, Warehouse(play.home, topology="play")
    plan = begin_plan(topology, play.home, "totals")
    plan.apply()
    made = RepairDecision(
        topology="play", sub_topology="events", command="begin", effect=plan.effect, outcome=RepairOutcome.APPLIED,
        by="Ann", note="the maximum",
    )  # fmt: skip
    record_repair(layout, made, at_ms=ms(1.5))
    start(play)
    batch(play, 2, a=2)
    batch(play, 30, a=9)
    start_over = replace_fields(made, sub_topology=None, command="start-over", effect="all", note="")
    record_repair(layout, start_over, at_ms=ms(40))

    changes = topology_changes(tables, "play", Interval(ms(0), ms(60)))
    of_totals = "totals begins anew: aggregates.total: was sum(v), is max(v)"
    assert changes == [
        RecordedChange(at_ms=ms(2.1), sub_topology="events", operator="dealt", batch_id=2,
                       told="dealt begins anew with totals"),
        RecordedChange(at_ms=ms(2.1), sub_topology="events", operator="totals", batch_id=2, told=of_totals,
                       read_by=("board", "dealt")),
        RecordedChange(at_ms=ms(2.2), sub_topology="dealt", operator="sums", batch_id=2,
                       told="sums begins anew with totals"),
        RecordedChange(at_ms=ms(40), sub_topology=None, operator=None, batch_id=None, told="the topology starts over"),
    ]  # fmt: skip
    by_operator = {name: [each.operator for each in of] for name, of in changes_by_operator(changes, topology).items()}
    assert by_operator == {
        "events": [None], "counts": [None], "log": [None], "totals": ["totals", None], "board": ["totals", None],
        "dealt": ["dealt", "totals", None], "dealt_source": ["dealt", "totals", None],
        "sums": ["dealt", "totals", "sums", None],
    }  # fmt: skip

    line = f"since 2014-05-13T12:00:02.100Z, batch 2 of events: {of_totals}"
    model = page_model(tables, layout, topology, Promises(), at_ms=ms(31), operator="board")
    assert [row["told"] for row in model["changes"]] == [
        "sums begins anew with totals", of_totals, "dealt begins anew with totals",
    ]  # fmt: skip
    assert [(row["decision"], row["decided_by"], row["note"]) for row in model["decisions"]] == [
        ("begin", "Ann", "the maximum")
    ]
    facts = topology_facts(tables, scene(topology, layout, ms(31), stored=tables.stored))
    page = topology_page(model, facts, topology)
    assert of_totals in page
    assert "the maximum" in page
    pages: dict[str, str] = {}
    for operator in ("board", "log"):
        past = history(tables, "play", [operator], ChartSpan.HOUR, at_ms=ms(31))
        pages[operator] = operator_page(model, facts, topology, operator, past, ())
    # The axis ends with the minute, so the change lies 57.9 s before its end.
    x = 1_000 - 57.9 / 3.6
    assert re.findall(r'<line class="changed" x1="([\d.]+)"', pages["board"]) == [f"{x:.1f}"]
    assert 'class="changed"' not in pages["log"]
    assert (line[1:] in pages["board"], line[1:] in pages["log"]) == (True, False)

    hour_ms, day_ms = 3_600_000, 24 * 3_600_000
    for begins_ms, is_told in ((0, True), (hour_ms, True), (7 * day_ms - hour_ms, True), (8 * day_ms, False)):
        interval = Interval(ms(0) + begins_ms, ms(0) + begins_ms + hour_ms)
        (file,) = write_pages(tables, topology, interval, tmp_path / "page.html")
        assert (of_totals in file.read_text()) is is_told
    told = path_document(play.home, topology, now_ms=ms(31))["changes"]
    assert [row["operator"] for row in told] == ["dealt", "totals", "sums"]

    of = scene(topology, layout, ms(31), stored=tables.stored)
    state = with_changes(interval_state(of, topology.operators["board"], ms(5)), tables, of)
    on_the_clock = line.replace("2014-05-13T12:00:02.100Z", "2014-05-13 12:00:02.100")
    assert as_line(state, topology.operators["board"]).endswith(
        f"{on_the_clock} (its rows of earlier batches mean what they meant before)"
    )


PLACEHOLDER = "3b7be2a93f31"
"""The id that the page has for a plan."""
PAGE = Path(__file__).parents[2] / "docs" / "changes.md"


def test_the_story_of_the_page_is_true(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, added = re.findall(r"^```toml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    play = start(Play(before, tmp_path / "w"))
    orders = [play.row("placed", ms(n), id=str(n), region="EU", at=ms(n)) for n in range(3)]
    play.batch(orders, at_ms=ms(4))
    (tmp_path / "orders.toml").write_text(
        before.replace('"1 h"', '"30 min"').replace('input = "placed"', 'input = "all"') + added
    )

    shown = re.findall(r"^\$ tidemark (.*)\n((?:[^$`].*\n)*)", text, flags=re.MULTILINE)
    ids: list[str] = []
    for line, said in shown:
        words = ["orders.toml" if word == "orders" else word for word in shlex.split(line)]
        words = [ids[0] if word == PLACEHOLDER else word for word in words]
        code, out, err = tidemark(tmp_path, "--warehouse", str(play.home), *words)
        ids += re.findall(r"--plan (\w+)", out)
        assert re.sub(r"\b[0-9a-f]{12}\b", PLACEHOLDER, out + err) == said
        assert code == (4 if words[0] == "plan" else 0)
    assert len(shown) == 3
