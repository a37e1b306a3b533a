from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from support.schemas import validator
from tidemark.errors import InvalidSpec
from tidemark.model import topology
from tidemark.model.measures.burn_rate import BURN_RATE
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.latency import LATENCY_P99
from tidemark.model.measures.operator_latency import OPERATOR_LATENCY_P50
from tidemark.model.measures.registry import no_subject
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.retention import Retention
from tidemark.model.slas.sla_keys import MeasureKind, form
from tidemark.model.slas.sla_spec import (
    Compliance,
    Slas,
    SlaSpec,
    load,
    load_usable,
    mistakes,
    parse,
    recorded_topologies,
    topologies_of_jobs,
    usable_slas,
)
from tidemark.model.tables.catalog import INCIDENTS
from tidemark.model.watched import WatchedSet
from tidemark.selection import names_in
from tidemark.semantics.incidents import Change, Damping
from tidemark.semantics.sla import BurnRate, Deadline, Objective, RecordMinimums, Severity, ShareMaximums, Sla, Unit

PROJECT = Path(__file__).parents[2]
TOML = tomllib.loads((PROJECT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8"))
TOML["operators"]["flight_board"]["complete"] = {"every": "1 h"}
FLIGHTS = topology.parse(TOML, file="flights.toml")
GOOD = {
    "subject": "flight_board",
    "measure": "staleness",
    "warn_after": "30 s",
    "error_after": "2 min",
    "owner": "desk",
}
OF_OBJECTIVE = {"subject": "carrier_delays", "measure": None, "warn_after": None, "error_after": None}
OBJECTIVE = {"latency": "30 s", "target": 0.99}
BEYOND_SCHEMAS = re.compile(
    "which is no time zone|names no time zone|is the same time|has '\\w+'; write hours|shorter than the longest"
)
"""What a schema cannot say: it knows no zones, and does not compare keys."""


def specs(**changes):
    table = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return parse({"flights": {"board": table}}, FLIGHTS, file="slas.toml")


def test_an_sla_is_read_with_its_defaults():
    assert specs() == (
        SlaSpec(
            name="board",
            subject="flight_board",
            measure=STALENESS,
            limits=Sla(warn_after_ms=30_000, error_after_ms=120_000),
            owner="desk",
            over_ms=600_000,
            ignore_when_idle=False,
            severity=Severity.CRITICAL,
            runbook=None,
            damping=Damping(open_after_ms=0, resolve_after_ms=600_000),
            maintenance_windows=(),
        ),
    )


def test_who_is_told_of_it_when_and_what_to_do_are_read() -> None:
    windows = ["daily 00:00-01:00", "2026-12-24T00:00Z/2026-12-26T00:00Z"]
    (spec,) = specs(
        severity="info",
        runbook="https://wiki/late",
        open_after="5 min",
        resolve_after="0 s",
        maintenance_windows=windows,
    )
    assert (spec.severity, spec.runbook) == (Severity.INFO, "https://wiki/late")
    assert spec.damping == Damping(open_after_ms=300_000, resolve_after_ms=0)
    at = {"2026-12-23T12:00Z": False, "2026-12-23T00:30Z": True, "2026-12-25T12:00Z": True, "2026-12-26T01:00Z": False}
    assert {text: spec.is_in_maintenance(instant_ms(text)) for text in at} == at


OFFICE = {"zone": "Europe/Berlin", "days": ["Mon", "Fri"], "from": "07:00", "to": "19:00"}


@pytest.mark.parametrize(
    ("at", "is_judged"),
    [
        ("2026-01-09T05:59:59Z", False),  # a Friday: 06:59:59 in winter
        ("2026-01-09T06:00Z", True),
        ("2026-07-10T05:00Z", True),  # a Friday: 07:00 in summer
        ("2026-07-10T17:00Z", False),  # 19:00
        ("2026-01-08T12:00Z", False),  # a Thursday
    ],
)
def test_a_calendar_has_hours_of_days_in_its_zone(at: str, *, is_judged: bool) -> None:
    (spec,) = specs(calendar=OFFICE)
    assert (spec.is_judged(instant_ms(at)), spec.is_in_maintenance(instant_ms(at))) == (is_judged, False)


def test_a_calendar_without_hours_has_whole_days() -> None:
    (spec,) = specs(calendar={"zone": "Asia/Kolkata", "days": ["Sun"]})
    # Sunday is from 18:30 of Saturday to 18:30 of Sunday in UTC.
    at = {"2026-11-21T18:29Z": False, "2026-11-21T18:30Z": True, "2026-11-22T18:29Z": True, "2026-11-22T18:30Z": False}
    assert {text: spec.is_judged(instant_ms(text)) for text in at} == at


def test_maintenance_is_of_an_sla_a_topology_or_all_topologies() -> None:
    content = {
        "maintenance": ["2026-12-24T00:00Z/2026-12-25T00:00Z"],
        "flights": {"maintenance": ["daily 01:00-02:00 Europe/Berlin"], "board": GOOD, "late": {**GOOD}},
    }
    at = {"2026-12-24T12:00Z": True, "2026-12-26T00:30Z": True, "2026-12-26T01:30Z": False}
    for spec in parse(content, FLIGHTS, file="slas.toml"):
        assert {text: spec.is_in_maintenance(instant_ms(text)) for text in at} == at
    for place in ({}, {"flights": {"maintenance": ["daily 01:00-02:00"]}}):
        (default,) = parse({"maintenance": content["maintenance"], **place}, FLIGHTS, file="slas.toml")
        assert (default.name, default.is_in_maintenance(instant_ms("2026-12-24T12:00Z"))) == ("nothing_gets_lost", True)


def test_wrong_maintenance_of_all_is_one_mistake(tmp_path: Path) -> None:
    (tmp_path / "slas.toml").write_text('maintenance = ["never"]\n')
    (error,) = mistakes(tmp_path / "slas.toml", [FLIGHTS, FLIGHTS], ["flights"])
    assert str(error).startswith("slas.toml: maintenance: has 'never'; write hours, with a time zone")


@pytest.mark.parametrize(
    ("changes", "limits", "lengths_ms"),
    [
        (
            {"measure": "records", "subject": "carrier_state", "warn_below": 100, "error_below": 1, "over": "1 h"},
            RecordMinimums(warn_below=100, error_below=1),
            (3_600_000,),
        ),
        (
            {"measure": "burn_rate", "subject": "carrier_state", "threshold": "30 s", "target": 0.99, "over": "1 h"},
            BurnRate(objective=Objective(threshold_ms=30_000, target=0.99), warn_at=1, error_at=14.4),
            (3_600_000, 300_000),
        ),
        (
            {
                "measure": "burn_rate",
                "subject": "weather",
                "threshold": "1 s",
                "target": 0.9,
                "error_at": 9,
                "min_records": 50,
            },
            BurnRate(objective=Objective(threshold_ms=1_000, target=0.9), warn_at=1, error_at=9, min_records=50),
            (600_000, 50_000),
        ),
        (
            {"measure": "watermark_lag", "subject": "carriers", "error_after": "5 min"},
            Sla(error_after_ms=300_000),
            (600_000,),
        ),
        (
            {"measure": "quarantined_share", "subject": "weather", "error_above": 0.05, "min_records": 20},
            ShareMaximums(error_above=0.05, min_records=20),
            (600_000,),
        ),
        (
            {"measure": "latency_p99", "subject": "carrier_delays", "error_after": "1 s", "min_records": 100},
            Sla(error_after_ms=1_000, min_records=100),
            (600_000,),
        ),
        ({"measure": None, "complete_by": "10 min"}, Deadline(after_ms=600_000), (600_000,)),
        (
            {"measure": "complete_by", "complete_by": "06:30 Europe/Berlin"},
            Deadline(minute=390, timezone="Europe/Berlin"),
            (600_000,),
        ),
    ],
)
def test_each_kind_of_measure_has_limits_of_its_own(changes, limits, lengths_ms) -> None:
    (spec,) = specs(**{"warn_after": None, "error_after": None, **changes})
    assert (spec.limits, spec.lengths_ms) == (limits, lengths_ms)


def test_one_limit_is_enough():
    (spec,) = specs(warn_after=None)
    assert spec.limits == Sla(error_after_ms=120_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subject": "carrier_state"}, r"board\.subject: is 'carrier_state', which has no staleness; use one of"),
        ({"measure": "latency_p98"}, r"board\.measure: is 'latency_p98'; use one of burn_.*; did you mean latency_p9"),
        ({"measure": "latency_p99", "subject": "flights"}, r"board\.subject: is 'flights'.*use one of .*carrier_state"),
        ({"measure": "completeness"}, r"board\.subject: .*use one of outcomes"),
        ({"place": "table", "subject": "changes"}, r"board\.place: is 'table', but staleness of 'changes' is not meas"),
        ({"warn_after": "30"}, r"board\.warn_after: is '30', which has no known unit"),
        ({"warn_after": "3 min"}, r"board\.warn_after: is '3 min' and error_after .* warn_after below error_after"),
        ({"warn_after": None, "error_after": None}, r"board\.warn_after: .*write one or both"),
        ({"owner": None}, r'board\.owner: is missing; write owner = "orders team"'),
        ({"severity": "bad"}, r"board\.severity: is 'bad'; use one of critical, warning, info"),
        ({"open_after": "soon"}, r"board\.open_after: is 'soon', which has no known unit"),
        ({"calendar": {**OFFICE, "zone": "Berlin"}}, r"board\.calendar\.zone: is 'Berlin', which is no time zone"),
        ({"calendar": {**OFFICE, "days": ["mon"]}}, r"board\.calendar\.days: has 'mon'; use any of Mon, Tue, Wed"),
        ({"calendar": {**OFFICE, "from": "7"}}, r"board\.calendar\.from: is '7'; write a time of day"),
        ({"calendar": {**OFFICE, "to": "07:00"}}, r"board\.calendar\.to: is the same time as from"),
        ({"calendar": {"zon": "UTC"}}, r"board\.calendar\.zon: is not a valid key here; did you mean zone\?"),
        ({"calendar": {"days": ["Mon"]}}, r"board\.calendar\.zone: is missing; write zone = .Europe/Berlin"),
        ({"maintenance_windows": ["Sunday"]}, r"board\.maintenance_windows: has 'Sunday'; write hours, with a"),
        ({"measure": "watermark_lag", "subject": "flight_board"}, r"board\.subject: .*use one of flight_events"),
        ({"complete_by": "9 min"}, r"board\.complete_by: is set, but measure is 'staleness'; leave it out, or choose"),
        ({**OF_OBJECTIVE, "complete_by": "9 min", "subject": "weather"}, r"board\.subject: is .weather., which has"),
        (
            {**OF_OBJECTIVE, "complete_by": "06:00 Berlin", "subject": "flight_board"},
            r"board\.complete_by: is '06:00 Berlin', which names no",
        ),
        ({"measure": None, "complete_by": "6 o'clock"}, r"board\.complete_by: is .6 o'clock., which has no known unit"),
        ({"measure": "records", "subject": "weather"}, r"board\.warn_below: and error_below are missing; write one"),
        ({"measure": "burn_rate", "subject": "weather"}, r'board\.threshold: is missing; write threshold = "30 s"'),
        (
            {"measure": "burn_rate", "subject": "weather", "threshold": "1 s", "target": 0.9},
            r"board\.warn_at: is 1 and error_at is 14\.4; .* error_at at most 10, the rate",
        ),
        (
            {"measure": "burn_rate", "subject": "weather", "threshold": "1 s", "target": 0.99, "warn_at": True},
            r"board\.warn_at: is True; write warn_at = 1",
        ),
        ({"ignore_when_idle": "yes"}, r"board\.ignore_when_idle: is 'yes'; write ignore_when_idle = true"),
        ({"subject": "weather", "by": "partition"}, r"board\.by: is 'partition'; write by = \[\"partition\"\]$"),
        ({"subject": "weather", "by": ""}, r"board\.by: is ''; write by = \[\"carrier\"\]$"),
        ({"warn_afer": "1 s"}, r"board\.warn_afer: is not a valid key here; did you mean warn_after"),
        ({"warn_afer": "1 s", "owner": None, "subject": None}, r"board\.warn_afer: is not .* you mean warn_after"),
        ({"warn_below": 1}, r"board\.warn_below: is set, but measure is 'staleness'.* measure records, volume$"),
        ({"error_after": "-2 min"}, r"board\.error_after: is '-2 min'; write a length above 0, such as"),
        ({"open_after": "-1 min"}, r"board\.open_after: is '-1 min'; write a length of 0 or more, such as"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_file_key_and_remedy(changes, message):
    with pytest.raises(InvalidSpec, match=r"(?m)^slas\.toml: flights\." + message):
        specs(**changes)
    table = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    found = form().read("slas.toml", "flights.board", table).mistakes
    refused = [*validator("slas").iter_errors({"flights": {"board": table}})]
    assert bool(refused) == any(not BEYOND_SCHEMAS.search(str(mistake)) for mistake in found)


@pytest.mark.parametrize("name", ["checks_are_made", "decision"])
def test_a_name_of_tidemark_is_no_sla(name):
    with pytest.raises(InvalidSpec, match=rf"flights\.{name}: is reserved for Tidemark; use another name"):
        parse({"flights": {name: GOOD}}, FLIGHTS, file="slas.toml")


def test_a_topology_that_promises_nothing_by_name_loses_nothing():
    (spec,) = parse({"trains": {}}, FLIGHTS, file="slas.toml")
    assert (spec.name, spec.measure, spec.subject) == ("nothing_gets_lost", COMPLETENESS, "outcomes")


def test_a_topology_with_an_empty_table_of_slas_is_refused():
    with pytest.raises(InvalidSpec, match=r"slas\.toml: flights: has no SLAs; write a table \[flights\.NAME\]"):
        parse({"flights": {}}, FLIGHTS, file="slas.toml")


def test_what_is_no_toml_is_refused(tmp_path):
    (tmp_path / "slas.toml").write_text("[flights")
    with pytest.raises(InvalidSpec, match=r"slas\.toml: file: is not valid TOML"):
        load(tmp_path / "slas.toml", FLIGHTS)


def test_mistakes_are_told_apart_from_the_slas_that_can_be_used(tmp_path):
    file = written(
        tmp_path, ["flights.late", "flights.Board", "flights.board", "trains.mine"], **{"flights.late": 'over = "soon"'}
    )
    found = load_usable(file, FLIGHTS)
    assert [spec.name for spec in found.specs] == ["board"]
    assert list(found.errors) == ["late", "Board"]
    with pytest.raises(InvalidSpec) as refused:
        found.refuse()
    late, name = str(refused.value).splitlines()
    assert late.startswith("slas.toml: flights.late.over: is 'soon'")
    assert name.startswith("slas.toml: flights.Board: is not a valid SLA name")


def test_an_empty_table_of_a_topology_is_a_mistake(tmp_path):
    (tmp_path / "slas.toml").write_text("flights = 3")
    found = load_usable(tmp_path / "slas.toml", FLIGHTS)
    assert (found.specs, list(found.errors)) == ((), ["flights"])


def test_hours_under_another_key_are_not_taken_for_a_table(tmp_path):
    hours = 'maintenance_windows = ["daily 01:00-02:00"]'
    file = written(tmp_path, ["flights.board"])
    file.write_text(f"{hours}\n{file.read_text()}\n[flights]\n{hours}\n")
    assert [str(error) for error in mistakes(file, [FLIGHTS], ["flights"])] == [
        "slas.toml: maintenance_windows: is not a topology; maintenance of all topologies has the key maintenance",
        "slas.toml: flights.maintenance_windows: is not a table of an SLA; "
        "maintenance of all SLAs of a topology has the key maintenance",
    ]


def test_every_mistake_is_reported_with_the_nearest_topology(tmp_path):
    tables = ["flights.board", "flihgts.mine", "boats.mine", "flights.late", "flights.slow"]
    file = written(tmp_path, tables, **{"flights.late": 'ownr = "me"', "flights.slow": "target = 1"})
    assert [str(error).partition(" (")[0] for error in mistakes(file, [FLIGHTS], ["flights", "trains"])] == [
        "slas.toml: flihgts: is not a topology; did you mean flights?",
        "slas.toml: boats: is not a topology; known topologies: flights, trains",
        "slas.toml: flights.late.ownr: is not a valid key here; did you mean owner?",
        "slas.toml: flights.slow.target: is set, but measure is 'staleness'; leave it out, or choose measure burn_rate",
    ]


def test_a_topology_of_jobs_has_no_file_not_even_an_invalid_one(tmp_path):
    slas, files = tmp_path / "slas.toml", [tmp_path / "other.toml", tmp_path / "clicks.toml"]
    slas.write_text("".join(f"[{name}]\nrecorded = true\n" for name in ("shop", "bakery", "clicks", "other")))
    for file, text in zip(files, ('name = "bakery"\nwindow = 3\n', "name = "), strict=True):
        file.write_text(text)
    found = topologies_of_jobs(slas, files)
    assert {name: (each.name, each.sub_topologies) for name, each in found.items()} == {
        "shop": ("shop", ()), "other": ("other", ()),
    }  # fmt: skip


def test_topologies_of_jobs_are_marked_in_the_file(tmp_path):
    file = written(tmp_path, ["flights.board", "shop.enrich"])
    text = file.read_text()
    file.write_text(f"{text}[shop]\nrecorded = true\n")
    assert (mistakes(file, [FLIGHTS], ["flights"]), recorded_topologies(file)) == ([], ["shop"])
    file.write_text(f"{text}[shop]\nrecorded = true\n[flights]\nrecorded = true\n")
    assert [str(error) for error in mistakes(file, [FLIGHTS], ["flights"])] == [
        "slas.toml: flights.recorded: has a topology file; remove recorded"
    ]
    file.write_text(f"{text}[flights]\nrecorded = 1\n[shop]\nrecorded = 1\n")
    assert [str(error) for error in mistakes(file, [FLIGHTS], ["flights"])] == [
        "slas.toml: shop.recorded: is 1; write recorded = true",
        "slas.toml: flights.recorded: is 1; write recorded = true, or leave it out",
    ]
    file.write_text(f"{text}[shop]\nrecoded = true\n[flights]\nrecoded = true\n")
    assert [str(error) for error in mistakes(file, [FLIGHTS], ["flights"])] == [
        "slas.toml: shop.recoded: is not a valid key here; did you mean recorded?",
        "slas.toml: flights.recoded: is not a table of an SLA; write a table [flights.recoded]",
    ]
    for part in ('[flights]\nsubject = "board"\nmeasure = "staleness"\n', 'flights = "x"\n'):
        file.write_text(part)
        assert mistakes(file, [], ["flights"], [FLIGHTS])
    file.write_text(f"{text}[shop]\nrecorded = true\n[shoop.orders]\n")
    assert [str(error) for error in mistakes(file, [FLIGHTS], ["flights"])] == [
        "slas.toml: shoop: is not a topology; did you mean shop?"
    ]


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        ('measure = "watermark_lag"', None),
        ('measure = "latency_p99"', None),
        ('measures = "watermark_lag"', "measures: is not a valid key here; did you mean measure?"),
        ('measure = "watermark_lag"\nerror_after = 5', "error_after: is 5"),
        ('measure = "staleness"', "subject: is 'orders', which has no staleness"),
        ('measure = "complete_by"', "measure: is 'complete_by', but no operator"),
    ],
)
def test_slas_of_jobs_are_judged_before_any_query_ran(table, mistake):
    content = tomllib.loads(f'subject = "orders"\nowner = "ann"\n{table}')
    if "measure" in content and "error_after" not in content:
        content["error_after"] = "5 min"
    found = usable_slas({"shop": {"recorded": True, "late": content}}, topology.of_jobs("shop"), file="slas.toml")
    if mistake is None:
        assert (names_in(found.specs), found.errors) == (["late"], {})
    else:
        assert f"slas.toml: shop.late.{mistake}" in str(found.errors["late"])


@pytest.mark.parametrize(
    ("text", "message"), [("[flights", "is not valid TOML"), (None, "does not exist; write the SLAs")]
)
def test_a_file_that_cannot_be_read_is_one_mistake(tmp_path, text, message):
    if text is not None:
        (tmp_path / "slas.toml").write_text(text)
    (error,) = mistakes(tmp_path / "slas.toml", [FLIGHTS], ["flights"])
    assert str(error).startswith(f"slas.toml: file: {message}")


def test_the_projects_own_file_has_no_mistake():
    assert mistakes(PROJECT / "expectations" / "slas.toml", [FLIGHTS], ["flights"]) == []


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "warn_above: and error_above are missing"),
        ({"warn_above": 5, "error_above": 0}, "warn_above: is 5 and error_above is 0"),
        ({"error_above": -1}, "error_above: is -1; write 0 or more"),
    ],
)
def test_limits_of_changes_are_whole_numbers_in_order(limits, message):
    usual = {"measure": "schema_changes", "subject": "flight_events", "warn_after": None, "error_after": None}
    with pytest.raises(InvalidSpec, match=message):
        specs(**usual, **limits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error_above": 1}, "error_above: is 1; write a share from 0 to below 1, such as error_above = 0.05"),
        ({}, "warn_above: and error_above are missing; write one or both as shares"),
        ({"warn_above": 0.5, "error_above": 0.1}, "warn_above: is 0.5 and error_above is 0.1"),
        ({"error_above": 0.1, "min_records": 0}, "min_records: is 0; write 1 or more"),
        ({"measure": "late_share", "error_above": 0.1}, "measure: is 'late_share', but no operator finds records late"),
    ],
)
def test_limits_of_shares_are_below_1_and_in_order(changes, message):
    usual = {"measure": "quarantined_share", "subject": "flight_events", "warn_after": None, "error_after": None}
    with pytest.raises(InvalidSpec, match=message):
        specs(**{**usual, **changes})


def written(folder, names, **more):
    """Writes a file with a valid SLA per name, plus *more*.

    *more* has additional lines by name, which may be invalid.
    """
    good = "".join(f"{key} = '{value}'\n" for key, value in GOOD.items())
    (folder / "slas.toml").write_text("".join(f"[{name}]\n{good}{more.get(name, '')}\n" for name in names))
    return folder / "slas.toml"


def test_the_slas_of_flights_cover_every_kind_of_measure():
    found = load(PROJECT / "expectations" / "slas.toml", FLIGHTS)
    assert {spec.measure for spec in found} >= {
        STALENESS, LATENCY_P99, OPERATOR_LATENCY_P50, COMPLETENESS,
    }  # fmt: skip


SUBJECTS = {
    "staleness": "flight_board", "complete_by": "flight_board", "watermark_lag": "flight_events",
    "completeness": "outcomes", "schema_changes": "flight_events", "contract": "tables",
}  # fmt: skip


@pytest.mark.parametrize("kind", form().kinds, ids=lambda kind: kind.name)
def test_the_examples_of_the_keys_of_a_measure_are_accepted(kind: MeasureKind) -> None:
    if kind.name == "late_share":  # no operator of flights finds records late
        return
    is_of_watched = kind.measure.subjects is no_subject
    of_some = {"subject", "measure", "while_catching_up", "by", "place", "ignore_when_idle" if is_of_watched else ""}
    keys = [key for key in form().keys_of(kind) if key.name not in of_some]
    table = tomllib.loads("".join(f"{key.name} = {key.example}\n" for key in keys))
    measure = {} if kind.word is None else {"measure": kind.name}
    table |= {"subject": SUBJECTS.get(kind.name, "carrier_state"), **measure}
    promising = FLIGHTS
    if is_of_watched:
        promising = topology.of_watched([WatchedSet(name="silver", places=("/lake",))])
        table["subject"] = "silver.orders"
    calendars = {"days_off": {"zone": "Europe/Berlin", "weekdays": ["Sat", "Sun"]}}
    found = parse({"calendars": calendars, promising.name: {"board": table}}, promising, file="slas.toml")
    assert {(spec.measure, spec.owner) for spec in found} == {(kind.measure, "orders team")}


def test_the_examples_of_groups_places_and_excuses_are_accepted() -> None:
    examples = {key.name: tomllib.loads(f"value = {key.example}")["value"] for key in form().keys}
    (grouped,) = specs(subject="carrier_state", by=examples["by"], over="1 d")
    (placed,) = specs(place=examples["place"], while_catching_up=examples["while_catching_up"])
    # Both places of an append-only table are the same.
    assert (grouped.by, placed.place, placed.while_catching_up) == (("carrier",), "view", "excuse")


def test_staleness_by_columns_of_a_key() -> None:
    (spec,) = specs(subject="flight_status", by=["flight"])
    assert (spec.by, spec.over_ms) == (("flight",), 86_400_000)
    (spec,) = specs(subject="flight_events", by=["partition"], over="2 h")
    assert (spec.by, spec.over_ms) == (("partition",), 7_200_000)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"by": ["origin"]},
            r"board\.subject: is 'flight_board', which has no groups; with `by`, use one of "
            r"flight_events \(by partition\), weather \(by partition\), weather_now \(by origin\), "
            r"flight_status \(by flight\), carrier_state \(by carrier, origin\)$",
        ),
        ({"subject": "flight_status", "by": ["carrier"]}, r"board\.by: is \['carrier'\]; use columns of the key of "),
        (
            {"subject": "flight_status", "by": ["flight"], "measure": "latency_p99"},
            r"board\.by: is set, but latency_p99 is not measured by groups",
        ),
        # Such an SLA would never break: a group is gone before it is stale.
        (
            {"subject": "flight_status", "by": ["flight"], "over": "1 h", "error_after": "1 h"},
            r"board\.over: is 1 h, after which an unseen group counts no more; write a longer time than .* 1 h$",
        ),
        (
            {"subject": "flight_status", "by": ["flight"], "error_after": "2 d"},
            r"board\.over: is 1 d, after which an unseen group counts no more; write a longer time than .* 2 d$",
        ),
    ],
)
def test_groups_that_do_not_exist_are_refused(changes, match) -> None:
    with pytest.raises(InvalidSpec, match=match):
        specs(**changes)


def objective(toml=None, **keys):
    return specs(**OF_OBJECTIVE, **keys, objective=OBJECTIVE if toml is None else toml)


def test_an_objective_is_three_burn_rates() -> None:
    found = objective({**OBJECTIVE, "window": "7 d", "min_records": 50}, runbook="look")
    promised = Objective(threshold_ms=30_000, target=0.99)
    assert [(spec.name, spec.severity, spec.lengths_ms, spec.limits) for spec in found] == [
        (
            f"board_{name}",
            severity,
            lengths_ms,
            BurnRate(objective=promised, warn_at=rate, error_at=rate, min_records=50),
        )
        for name, severity, lengths_ms, rate in (
            ("1h", Severity.CRITICAL, (3_600_000, 300_000), 14.4),
            ("6h", Severity.CRITICAL, (21_600_000, 1_800_000), 6),
            ("3d", Severity.WARNING, (259_200_000, 21_600_000), 1),
        )
    ]
    assert {(spec.compliance, spec.measure, spec.owner, spec.runbook) for spec in found} == {
        (Compliance(name="board", window_ms=604_800_000), BURN_RATE, "desk", "look")
    }


def test_the_shortest_latency_that_counts_against_an_sla_is_known() -> None:
    """A warning is one, too. The work of an operator and the age of a table are no latencies of records."""
    limits = {
        "work": {"measure": "operator_latency_p50", "warn_after": "1 s"},
        "age": {"measure": "staleness", "warn_after": "2 s"},
        "slow": {"measure": "latency_p99", "error_after": "50 s", "warn_after": "40 s"},
    }
    assert Slas(specs=objective(), errors={}).least_latency_ms == 30_000
    for expected_ms, names in ((None, ["work", "age"]), (40_000, [*limits])):
        tables = {name: {"subject": "flight_board", "owner": "desk", **limits[name]} for name in names}
        found = usable_slas({"flights": tables}, FLIGHTS, file="slas.toml")
        assert (found.least_latency_ms, found.errors) == (expected_ms, {})


def test_an_objective_has_a_window_of_28_days_by_default() -> None:
    assert {(spec.compliance.window_ms, spec.limits.min_records) for spec in objective()} == {(2_419_200_000, 100)}


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ({"target": 0.99}, r"objective\.latency: is missing; write latency = \"30 s\""),
        ({"latency": "30 s"}, r"objective\.target: is missing; write target = 0\.99"),
        ({"latency": "30 s", "targets": 0.99}, r"objective\.targets: is not a valid key here; did you mean target\?"),
        (
            OBJECTIVE | {"target": 1},
            r"objective\.target: is 1, whose budget cannot burn at the rate 14\.4; write a share",
        ),
        # 1 / (1 - 0.93) is 14.3, and 1 / (1 - 0.931) is 14.5.
        (OBJECTIVE | {"target": 0.93}, r"objective\.target: is 0\.93, whose .* write a share from 0\.931 to below 1"),
        (
            OBJECTIVE | {"window": "2 d"},
            r"objective\.window: is 2 d, shorter than the longest .* write \"3 d\" or longer",
        ),
        (OBJECTIVE | {"min_records": 0}, r"objective\.min_records: is 0; write 1 or more"),
        (OBJECTIVE | {"over": "1 h"}, r"objective\.over: is not a valid key here"),
        ([1], r"objective: is \[1\]; write objective = \{ latency"),
    ],
)
def test_a_mistake_in_an_objective_has_its_key(toml, message) -> None:
    with pytest.raises(InvalidSpec, match=r"^slas\.toml: flights\.board\." + message):
        objective(toml)


@pytest.mark.parametrize("keys", [{"severity": "info"}, {"over": "1 h"}, {"warn_at": 2}])
def test_an_objective_has_windows_and_severities_of_its_own(keys) -> None:
    message = f"board.{next(iter(keys))}: is set, but an objective has its own; leave it out"
    with pytest.raises(InvalidSpec, match=message):
        objective(**keys)


def test_a_name_needs_space_for_its_windows() -> None:
    table = {"subject": "carrier_delays", "owner": "desk", "objective": OBJECTIVE}
    assert len(parse({"flights": {"b" * 60: table}}, FLIGHTS, file="slas.toml")) == 3
    with pytest.raises(InvalidSpec, match=r"bb: is too long for an objective; shorten it by 3 letters"):
        parse({"flights": {"b" * 61: table}}, FLIGHTS, file="slas.toml")


def test_a_window_needs_rollups_that_are_kept_as_long() -> None:
    kept = replace(FLIGHTS, retention=Retention(reports_ms=7 * 86_400_000))
    table = {"subject": "carrier_delays", "owner": "desk", "objective": OBJECTIVE}
    with pytest.raises(InvalidSpec, match=r"objective\.window: is 28 d, but flights keeps rollups for 7 d; raise ret"):
        parse({"flights": {"board": table}}, kept, file="slas.toml")


def test_incidents_of_an_invalid_objective_stay_open(tmp_path) -> None:
    file = written(tmp_path, ["flights.board"], **{"flights.board": "objective = 3"})
    assert load_usable(file, FLIGHTS).unusable == {"board", "board_1h", "board_6h", "board_3d"}


def test_a_name_of_a_window_is_taken() -> None:
    table = {"subject": "carrier_delays", "owner": "desk", "objective": OBJECTIVE}
    for names in (("board", "board_1h"), ("board_1h", "board")):
        tables = {"board": table, "board_1h": GOOD}
        with pytest.raises(InvalidSpec, match=r"flights\.board_1h: is also the name of a window of an objective"):
            parse({"flights": {name: tables[name] for name in names}}, FLIGHTS, file="slas.toml")


def test_the_example_of_an_objective_on_the_page_is_valid() -> None:
    text = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    section = text.partition("## Objectives")[2].partition("\n## ")[0]
    example = section.partition("```toml\n")[2].partition("```")[0]
    found = parse(tomllib.loads(example), FLIGHTS, file="slas.toml")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| ([\d.]+) \| `(\w+)` \|$", section, re.MULTILINE)
    assert [(spec.name, f"{spec.limits.error_at:g}", spec.severity) for spec in found] == rows


def test_the_example_of_groups_fits_the_first_topology() -> None:
    page = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    guide = (PROJECT / "docs" / "first-topology.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r'```toml\n(name = "readings".+?)```', guide, re.DOTALL)
    readings = topology.parse(tomllib.loads(toml), file="readings.toml")
    example = page.partition("### Groups and intervals")[2].partition("```toml\n")[2].partition("```")[0]
    found = parse(tomllib.loads(example), readings, file="slas.toml")
    assert [(spec.name, spec.by) for spec in found] == [("each_sensor", ("sensor",)), ("board_in_time", ())]


def test_the_example_of_maintenance_and_a_calendar_loads() -> None:
    page = (PROJECT / "docs" / "alerts.md").read_text(encoding="utf-8")
    section = page.partition("### Maintenance and calendars")[2].partition("\n### ")[0]
    (example,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    (spec,) = parse(tomllib.loads(example), FLIGHTS, file="slas.toml")
    # A Sunday at 02:30 in winter; 06:59 and 07:00 of a Monday in summer.
    assert spec.is_in_maintenance(instant_ms("2026-01-11T01:30Z"))
    assert [spec.is_judged(instant_ms(f"2026-07-06T{clock}Z")) for clock in ("04:59", "05:00")] == [False, True]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"subject": "nobody", "error_after": 5, "owner": ""}, ["subject", "error_after", "owner"]),
        ({"owner": None, "severity": "high", "runbook": 3}, ["owner", "severity", "runbook"]),
        ({"warn_after": None, "error_after": 5}, ["error_after"]),
        ({"warn_after": None, "error_after": None, "error_aftr": "5 s", "owner": None}, ["error_aftr", "owner"]),
        ({"warn_after": None, "error_after": None, "owner": None}, ["warn_after", "owner"]),
        ({"measure": "lateness", "subject": "carriers", "owner": None}, ["measure", "owner"]),
        # Of an unknown measure a value is right if it is right for one that has the key.
        ({"measure": "lateness", "warn_above": 0.5, "min_records": 0}, ["measure", "min_records"]),
        ({"measure": "lateness", "subject": "nobody"}, ["measure", "subject"]),
        (
            {**OF_OBJECTIVE, "objective": {"latency": 3, "target": 0.9, "window": "1 h"}, "warn_after": "1 s"},
            ["objective.latency", "objective.target", "objective.window", "warn_after"],
        ),
        # A misspelt key that decides leaves it open which others are right.
        ({**OF_OBJECTIVE, "complete_bye": "10 min", "owner": None}, ["complete_bye", "owner"]),
        ({**OF_OBJECTIVE, "measures": "records", "warn_below": 3}, ["measures"]),
        (
            {"measure": "latency_p99", "subject": "carrier_delays", "warn_after": "3 min", "min_records": 0},
            ["warn_after", "min_records"],
        ),
        ({"measure": None, "measures": "watermark_lag", "subject": "flight_events"}, ["measures"]),
        (
            {**OF_OBJECTIVE, "objective": {"latency": 3, "target": 7, "colour": 1}, "owner": None},
            ["objective.latency", "objective.target", "objective.colour", "owner"],
        ),
    ],
)
def test_all_mistakes_of_an_sla_are_told_at_once(changes, keys):
    with pytest.raises(InvalidSpec) as refused:
        specs(**changes)
    told = [line.split(": ")[1].removeprefix("flights.board.") for line in str(refused.value).splitlines()]
    assert sorted(told) == sorted(keys)


def test_units_of_alerts_are_those_of_the_schema_and_of_incidents() -> None:
    schema = json.loads((PROJECT / "docs" / "alert.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["unit"]["enum"] == [*Unit, None]
    assert schema["properties"]["change"]["enum"] == [*Change]
    (unit,) = (column for column in INCIDENTS.columns if column.name == "unit")
    assert unit.comment == " | ".join(Unit)
