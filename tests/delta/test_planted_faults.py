"""Planted faults: what was planted broke the promise, and the product names whose fault it is.

`support/fault_table.py` is the table. Each play is played once, and its promises are judged together.
"""

from __future__ import annotations

import shutil
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from _pytest.mark import ParameterSet

import critical_path
from support.excess import excess, is_tiled, results
from support.fault_table import CONTROLS, FAULTS, SHOP, Case, Owned, Stage, shop
from support.healthy import AnyWorld, Healthy, specs_of
from support.planted import Killed, Stopped, Whose
from support.play import NOON, Row, ms
from support.played_facts import played_facts
from support.world import Fault, Traffic, World
from support.world_drivers import BEAT_MS
from tidemark.account.cause import cause_of
from tidemark.account.contract import owner_of_contract
from tidemark.account.excess import path_of
from tidemark.account.explanation import Answer, Explanation
from tidemark.account.ledger import Ledger
from tidemark.account.numbers import shares_of_records
from tidemark.account.records import numbered, record_parts
from tidemark.account.text import remedy_of_cause
from tidemark.account.warehouse import AccountTables
from tidemark.facts.fact_tables import Stored
from tidemark.facts.report_rows import rows_in
from tidemark.model.kinds.source import Source
from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.contract import CONTRACT
from tidemark.model.measures.latency import LATENCY_P50, LATENCY_P90, LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.measures.records import RECORDS
from tidemark.model.measures.shares import LATE_SHARE, QUARANTINED_SHARE
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.measures.watermark_lag import WATERMARK_LAG
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_event_rows import event_of
from tidemark.model.sla_events import AlertCause, SlaResult
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import SLA_RESULTS
from tidemark.query.sql import Warehouse
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.documents.why import why_document
from tidemark.reports.pages.topology_state import TopologyState
from tidemark.reports.what_if.parts import PartChange, what_if_part
from tidemark.semantics.sla import BurnRate
from tidemark.storage.delta.report_tables import open_report

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # great-expectations imports a module that Python 3.11 deprecates
    from tidemark.sla.check import run as run_check
    from tidemark.sla.incidents.tables import in_ms

FOLLOWED = frozenset({LATENCY_P50, LATENCY_P90, LATENCY_P99, BURN_RATE, STALENESS})
"""Measures of single records, which `excess` can follow."""
OF_RECORDS = frozenset({RECORDS, QUARANTINED_SHARE, LATE_SHARE})
OF_ROWS = frozenset({CONTRACT, COMPLETENESS})
CLOCKS_ERROR_MS = 6
"""Two hosts are measured to 3 ms each."""
Play = tuple[Stage, tuple[Any, ...], float]
"""A stage, what is planted, and the second of the check."""


def cases_by_play(cases: Sequence[Case]) -> dict[Play, list[Case]]:
    """Returns the rows that one play answers."""
    plays: dict[Play, list[Case]] = defaultdict(list)
    for case in cases:
        plays[case.stage, case.faults, case.at_s].append(case)
    return plays


PLAYS = cases_by_play([*FAULTS, *CONTROLS])


@dataclass(frozen=True)
class Played:
    """The world after a play, its rows of the table, and the result of the check by promise."""

    world: AnyWorld
    cases: Sequence[Case]
    checked: Mapping[str, Row]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Healthy:
    return Healthy(tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, healthy: Healthy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    """Plays a fault; its tests share the play, and then its folder is removed."""
    play: Play = request.param
    (stage, faults, at_s), cases = play, PLAYS[play]
    home = tmp_path_factory.mktemp("play") / "warehouse"
    world = healthy.copy(stage, home).plant(*faults)
    world.run(at_s)
    for fault in faults:
        fault.end(world, at_s)
    specs = specs_of(stage, world, *dict.fromkeys(case.promise for case in cases))
    if any(spec.measure is OPERATOR_LATENCY_P50 for spec in specs):
        critical_path.run(world.layout, world.topology, specs, Interval(NOON, ms(at_s)))
    run_check(world.layout, world.topology, specs, at_ms=ms(at_s), run_id="r")
    rows = open_report(SLA_RESULTS, world.layout.report_table(world.topology.name, SLA_RESULTS.name))
    yield Played(world, cases, {row["sla"]: row for row in in_ms(rows_in(rows))})
    shutil.rmtree(home)


def agrees(found_ms: float, wanted_ms: float, error_ms: float = 0) -> bool:
    """Returns whether an amount is within the larger of 10 %, the clocks' error and 100 ms of what was planted."""
    return abs(found_ms - wanted_ms) <= max(abs(wanted_ms) / 10, error_ms, 100)


IN_TEST = (
    "slow operator", "1: topic that flushes slowly beside two quick tables", "5: stopped for 12 s",
    "4: a phone that reconnects", "pair: operators on both sides of a hop", "control: healthy, board_in_time",
)  # fmt: skip
"""Rows that `make test` plays, too; `make proof` plays all."""


def each_play() -> Iterator[ParameterSet]:
    for play, cases in PLAYS.items():
        is_long = not any(case.name in IN_TEST for case in cases)
        yield pytest.param(play, id=cases[0].name, marks=pytest.mark.long if is_long else ())


@pytest.mark.parametrize("played", [*each_play()], indirect=True)
def test_what_is_planted_breaks_the_promise(played: Played) -> None:
    """The amounts of the table are what the world spent, and what the account finds in the facts of the play."""
    world = played.world
    assert all(is_tiled(driver) for driver in world.drivers.values())
    for case in played.cases:
        assert played.checked[case.promise]["verdict"] == case.verdict, case.name
        assert amounts_that_differ(world, case) == [], case.name
    if isinstance(world, World) and not any(driver.leaves_behind for driver in world.drivers.values()):
        assert parts_that_differ(world) == []


def amounts_that_differ(world: AnyWorld, case: Case) -> list[str]:
    """Returns how the amounts of *case* differ from what happened in *world*."""
    (spec,) = specs_of(case.stage, world, case.promise)
    has_amounts = any(owned.amount_ms is not None for owned in case.owners)
    if isinstance(world, World) and case.is_followed and spec.measure in FOLLOWED and has_amounts:
        return owners_followed(world, case, spec)
    return owners_planted(world, case)


def owners_planted(world: AnyWorld, case: Case) -> list[str]:
    """Returns how the owners of *case* differ from what its faults planted."""
    wrong = []
    for owned in case.owners:
        by = [fault for fault in case.faults if covers(fault.whose, owned)]
        in_ms = [n for fault in by if not fault.is_of_records for n in world.planted[fault]]
        records = sum(len(world.planted[fault]) for fault in by)
        if owned.amount_ms is not None and in_ms and not agrees(owned.amount_ms, median(in_ms)):
            wrong.append(f"{owned}: planted {median(in_ms)} ms")
        if owned.records is not None and by and records != owned.records:
            wrong.append(f"{owned}: planted {records} records")
    return wrong


def covers(whose: tuple[str, str], owned: Owned) -> bool:
    """Returns whether a fault of *whose* is one of *owned*.

    That of a disk is one of each target, and that of a topic one of each partition.
    """
    owner, detail = whose
    return owner == owned.owner and (detail in {"", owned.detail} or detail == f"{owned.detail.split('/')[0]}/None")


def owners_followed(world: World, case: Case, spec: SlaSpec) -> list[str]:
    """Returns how the owners of *case* differ from those whose time the excess was."""
    limit_ms = spec.limits.objective.threshold_ms if isinstance(spec.limits, BurnRate) else spec.limits.error_after_ms
    found = excess(results(world, spec.subject), limit_ms, ms(case.stage.since_s))
    whole_ms = sum(each.median_ms for each in found.values())
    # Of the records of a round the first is two ms younger than the last: that is nobody's excess.
    told = {whose for whose, each in found.items() if each.largest_ms > 110 and each.median_ms >= whole_ms / 10}
    wanted = {(owned.owner, owned.detail): owned.amount_ms or 0 for owned in case.owners}
    wrong = [f"{whose}: {found[whose]}, not in the table" for whose in sorted(told - wanted.keys())]
    for whose, amount_ms in wanted.items():
        each = found.get(whose)
        if each is None or not (agrees(each.largest_ms, amount_ms) or agrees(each.median_ms, amount_ms)):
            wrong.append(f"{whose}: {each}, in the table {amount_ms} ms")
    return wrong


def parts_that_differ(world: World) -> list[str]:
    """Returns where the account of time, from the facts that were played, is not what happened in *world*."""
    ledger = Ledger.of(played_facts(world))
    places = numbered(ledger.facts.results).select("result", "place", "event_ms")
    found = record_parts(ledger).join(places, on="result")
    booked: dict[tuple[str, int], Counter[Whose]] = defaultdict(Counter)
    for row in found.iter_rows(named=True):
        booked[row["place"], row["event_ms"]][row["owner"], row["detail"]] += row["ms"]
    wrong = []
    for driver in world.drivers.values():
        for place in driver.tables:
            for result in results(world, place):
                # A record from the future has a negative part. Behind a hop its detail is the name of the hop.
                is_named_otherwise = driver.hops and result.visible_ms < result.sent.event_ms
                if result.is_open or is_named_otherwise:
                    continue
                account = booked[place, result.sent.event_ms]
                apart_ms = {whose: account[whose] - result.parts[whose] for whose in {*account, *result.parts}}
                # The pulse does not know where between two beats a pause began.
                beat_ms = BEAT_MS if any(owner == "pause" for owner, _ in result.parts) else 0
                if max(map(abs, apart_ms.values())) > beat_ms + CLOCKS_ERROR_MS:
                    wrong.append(f"{place}: {result.sent}: {apart_ms}")
    return wrong


@pytest.mark.parametrize("played", [*each_play()], indirect=True)
def test_what_is_not_about_time_has_the_owners_of_the_table(played: Played) -> None:
    """These are promises about numbers of records, or about rows, and the stalenesses whose owners have no length."""
    for case in played.cases:
        (spec,) = specs_of(case.stage, played.world, case.promise)
        found = explained_without_time(played.world, spec, case)
        if found is not None:
            named = {(leaf.owner, leaf.detail): leaf.records for leaf in found.leaves}
            assert named.keys() == {(owned.owner, owned.detail) for owned in case.owners}, case.name
            assert all(each.records in {None, named[each.owner, each.detail]} for each in case.owners), case.name
            assert found.answer is (Answer.EXPLAINED if case.owners else Answer.KEPT), case.name
            assert sum(leaf.share for leaf in found.leaves) == pytest.approx(1 if case.owners else 0), case.name


def explained_without_time(world: AnyWorld, spec: SlaSpec, case: Case) -> Explanation | None:
    """Returns what explains the promise of *case*, if it is not time."""
    has_lengths = any(owned.amount_ms is not None for owned in case.owners)
    is_of_records = spec.measure is STALENESS and case.owners and not has_lengths
    tables = AccountTables(world.layout, world.topology, Stored())
    if spec.measure in OF_RECORDS or is_of_records:
        return shares_of_records(tables, spec, at_ms=ms(case.at_s))
    if spec.measure in OF_ROWS:
        return owner_of_contract(tables, spec, at_ms=ms(case.at_s))
    return None


Named = Sequence[Owned]
"""Whom a surface names, with the amounts that it shows."""
Surface = Callable[[AnyWorld, SlaSpec, int], Named]
"""Asks a surface about a promise at an instant (epoch ms)."""


def of_account(world: AnyWorld, spec: SlaSpec, at_ms: int) -> Named:
    found = cause_of(world.topology, world.layout, spec, at_ms=at_ms)
    return [Owned(each.owner, each.detail, each.amount_ms, each.records) for each in found.leaves]


def of_check(checked: Mapping[str, Row]) -> Surface:
    """Returns what rows of `sla_results` say."""

    def told(_world: AnyWorld, spec: SlaSpec, _at_ms: int) -> Named:
        return leaves_of(event_of(SlaResult, checked[spec.name]).causes)

    return told


def leaves_of(causes: Sequence[AlertCause]) -> Named:
    """Returns the leaves of *causes*, and not the node that holds several together."""
    paths = {each: path_of((each.owner, each.detail or "", each.stream)) for each in causes}
    nodes = {node for path in paths.values() for node in path[:-1]}
    leaves = [each for each in causes if (each.owner, each.detail or "") not in nodes]
    return [Owned(each.owner, each.detail or "", each.amount_ms, each.records) for each in leaves]


def of_why(world: AnyWorld, spec: SlaSpec, at_ms: int) -> Named:
    """Returns whom `tidemark why` names for the operator that the promise is about, above its remarks."""
    operators = world.topology.operators.values()
    (operator,) = (each.name for each in operators if spec.subject in {each.name, each.result_table})
    found = why_document(world.layout.warehouse, world.topology, at_ms=at_ms, operator=operator).findings
    told = [each for each in found if each.owner is not None]
    assert found[: len(told)] == told
    assert sum(each.share or 0 for each in told) == pytest.approx(1, abs=0.15) if told else True
    return [Owned(each.owner or "", each.detail or "", each.amount_ms, each.records) for each in told]


def of_page(world: AnyWorld, spec: SlaSpec, at_ms: int) -> Named:
    """Returns whom the page of the topology, which `tidemark status` shows, names for a broken promise.

    What is told beside the verdict has the owner of one of the broken promises.
    """
    model = TopologyState(Stored(), world.layout, world.topology, at_ms=at_ms).summary()
    rows = {row["sla"]: row for row in model["slas"]["rows"]}
    cause, told = model["cause"], [row["blocked_by"] for row in rows.values() if row["causes"]]
    assert told == [] or cause["seen"] in told
    assert told == [] or cause["remedy"] in {
        remedy_of_cause(world.topology.name, AlertCause(**each)) for row in rows.values() for each in row["causes"][:1]
    }
    return leaves_of([AlertCause(**each) for each in rows[spec.name]["causes"]])


def of_topology(world: AnyWorld, spec: SlaSpec, at_ms: int) -> Answer:
    """Returns whom `tidemark topology`, and `tidemark path` in the same words, name for a broken promise."""
    told = {
        row["sla"]: row for row in topology_document(world.layout.warehouse, world.topology, at_ms=at_ms)["broken_slas"]
    }
    return leaves_of([AlertCause(**each) for each in told[spec.name]["causes"]]) if spec.name in told else []


def asked(of: Mapping[str, Surface], world: AnyWorld, case: Case) -> dict[str, list[str]]:
    """Returns, by surface, how its answer differs from the row: owners, and amounts beyond what they may differ by."""
    (spec,) = specs_of(case.stage, world, case.promise)
    differences: dict[str, list[str]] = {}
    for name, surface in of.items():
        answer = {(each.owner, each.detail): each for each in surface(world, spec, ms(case.at_s))}
        wanted = {(each.owner, each.detail): each for each in case.owners}
        wrong = [f"{whose} is named" for whose in sorted(answer.keys() - wanted.keys())]
        wrong += [f"{whose} is not named" for whose in sorted(wanted.keys() - answer.keys())]
        for whose in answer.keys() & wanted.keys():
            wrong += amounts_beyond(answer[whose], wanted[whose])
        if wrong:
            differences[name] = wrong
    return differences


def amounts_beyond(found: Owned, wanted: Owned) -> list[str]:
    """Returns how an amount differs from the one in the table by more than it may."""
    is_near = wanted.amount_ms is None or (
        found.amount_ms is not None and agrees(found.amount_ms, wanted.amount_ms, CLOCKS_ERROR_MS)
    )
    return [] if is_near and wanted.records in {None, found.records} else [f"{found} instead of {wanted}"]


def can_why(world: AnyWorld, case: Case) -> bool:
    """Returns whether `tidemark why` answers for the promise of *case*, too.

    It explains the operator that writes a table, and the time of a source. It knows no promise: what has been as late
    for a fifth of the history is usual.
    """
    (spec,) = specs_of(case.stage, world, case.promise)
    subjects = [each for each in world.topology.operators.values() if spec.subject in {each.name, each.result_table}]
    is_about_time = spec.measure is WATERMARK_LAG and any(isinstance(each, Source) for each in subjects)
    is_about_table = spec.measure is STALENESS and len(subjects) == 1
    is_usual_for_why = case.name in {"slow partition", "partition ahead of one whose producer is late"}
    return (is_about_time or is_about_table) and not is_usual_for_why


@pytest.mark.parametrize("played", [*each_play()], indirect=True)
def test_every_surface_names_the_owners_and_their_amounts(played: Played) -> None:
    surfaces = {"account": of_account, "check": of_check(played.checked), "page": of_page, "topology": of_topology}
    differences = {
        case.name: asked(surfaces | ({"why": of_why} if can_why(played.world, case) else {}), played.world, case)
        for case in played.cases
    }
    assert {name: each for name, each in differences.items() if each} == {}


@pytest.mark.parametrize(
    ("fault", "owner"),
    [(Stopped("reads", 250.1, 60_000), "pause"), (Killed("reads", 250.1, 60_000), "absence")],
    ids=["stood still", "was dead"],
)
def test_an_instant_inside_a_stop_is_told_as_it_was(healthy: Healthy, tmp_path: Path, fault: Fault, owner: str) -> None:
    """The record of 250 s arrives at 250.2 s, and waits from then on: heartbeats come each 10 s."""
    world = healthy.copy(SHOP, tmp_path / "warehouse").plant(fault)
    world.run(330)
    fresh, enough = specs_of(SHOP, world, "board_is_fresh", "enough_records")
    for at_s in (262, 285):
        told = [(each.owner, each.amount_ms) for each in of_why(world, fresh, ms(at_s))]
        assert told == [(owner, (at_s - 250) * 1_000 - 200)]
    # The records of 250, 260, 270 and 280 s wait unread.
    assert [(each.owner, each.records) for each in of_account(world, enough, ms(285))] == [(owner, 24)]


OWN_DRIVERS = Stage(shop(driver="own", trigger="10 s"), {}, [Traffic(after_s=7)], starts_s={"sums": 5})


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "owner"),
    [
        (Stopped("reads", 250.1, 25_000), "pause"),
        (Killed("reads", 253.4, 25_000), "absence"),
        (Stopped("sums", 252.3, 23_000), "pause"),
    ],
)
def test_what_if_tells_what_is_so_in_a_world_without_the_stop(
    healthy: Healthy, tmp_path: Path, fault: Fault, owner: str
) -> None:
    """The trigger of 10 s has eaten some of the stop."""
    stopped, going_on = (healthy.copy(OWN_DRIVERS, tmp_path / name) for name in ("stopped", "going_on"))
    stopped.plant(fault)
    ages: list[dict[str, Row]] = []
    for world in (stopped, going_on):
        world.run(345)
        for interval in (Interval(NOON, ms(240)), Interval(ms(240), ms(340))):
            critical_path.run(world.layout, world.topology, [], interval)
        tables = Warehouse(world.layout.warehouse)
        of = AccountTables(world.layout, world.topology, tables.stored)
        whose = PartChange(owner=owner if world is stopped else "trigger")
        ages.append({str(row["window_end"]): row for row in what_if_part(tables, of, whose)["windows"]})
    changed = {end: row for end, row in ages[0].items() if row["part_ms"]}
    assert len(changed) >= 3
    for end, row in changed.items():
        assert row["then_age_ms"] == pytest.approx(ages[1][end]["age_ms"], abs=CLOCKS_ERROR_MS), end


def test_the_table_has_faults_of_each_kind() -> None:
    names = [case.name for case in FAULTS]
    assert len({*names}) == len(names)
    pairs = {case.name for case in FAULTS if case.name.startswith(("pair", "9:"))}
    of_issue = {name.split(":")[0] for name in names if name[0].isdigit()}
    plays_of_controls = {(case.stage, case.faults) for case in CONTROLS}
    assert (len(names) >= 73, len(pairs) >= 15, len(of_issue), len(plays_of_controls) >= 30) == (True, True, 14, True)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Owned("operator", "newest", 600), 0),
        (Owned("operator", "newest", 699), 0),
        (Owned("operator", "newest", 701), 1),
        (Owned("operator", "newest"), 1),
        (Owned("operator", "board", 600), 2),
    ],
)
def test_an_answer_is_right_with_its_owner_and_an_amount_within_100_ms(found: Owned, wrong: int) -> None:
    """Another owner is two mistakes: it is named, and the right one is not."""
    case = next(case for case in FAULTS if case.name == "slow operator")
    world = World(case.stage.toml, Path("unused"))
    differences = asked({"page": lambda *_: [found]}, world, case)
    assert len(differences.get("page", [])) == wrong
