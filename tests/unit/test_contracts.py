"""SLAs become contracts and SLOs and come back, or are refused."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft201909Validator

from support.command_line import tidemark
from tidemark.cli.outside.contracts import ODCS, OPENSLO, as_yaml, exported, imported
from tidemark.model.project.layout import Layout
from tidemark.recorded.queries import RecordedQuery, write_query

PROJECT = Path(__file__).parents[2]
STANDARD = Path(__file__).parent / "contracts" / "odcs-json-schema-v3.1.0.json"
BOARD = {"subject": "flight_board", "error_after": "2 min", "owner": 'the "late" desk: #1'}
BY_SIX = {"subject": "flight_board", "owner": "desk", "complete_by": "06:00"}
OBJECTIVE = {
    "subject": "carrier_delays",
    "owner": "carriers",
    "runbook": "https://wiki.example.org/late",
    "objective": {"latency": "1500 ms", "target": 0.99, "window": "7 d", "min_records": 50},
}


NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
LENGTH = {"type": "string", "pattern": "^[1-9][0-9]*[mhdwMQY]$"}
DESCRIPTION = {"type": "string", "maxLength": 1_050}


def form(needed: dict, **optional: dict) -> dict:
    """Returns the schema of a table with these keys and no others."""
    properties = {**needed, **optional}
    return {"type": "object", "required": [*needed], "properties": properties, "additionalProperties": False}


def one(form: dict) -> dict:
    return {"type": "array", "minItems": 1, "maxItems": 1, "items": form}


ANNOTATIONS = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9-]+(\.[a-z0-9-]+)*/)?[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"},
    "additionalProperties": {"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"},
}
METADATA = form({"name": NAME}, annotations=ANNOTATIONS)
OPERATOR, NUMBER, YES_OR_NO = {"enum": ["lte", "gte", "lt", "gt"]}, {"type": "number"}, {"type": "boolean"}
BURN_RATE = {
    "kind": {"const": "burnrate"}, "op": OPERATOR, "threshold": NUMBER, "lookbackWindow": LENGTH, "alertAfter": LENGTH,
}  # fmt: skip
CONDITION = form({"severity": {"type": "string"}, "condition": form(BURN_RATE)})
POLICY = form(
    {
        "alertWhenBreaching": YES_OR_NO,
        "alertWhenResolved": YES_OR_NO,
        "alertWhenNoData": YES_OR_NO,
        "conditions": one(form({"kind": {"const": "AlertCondition"}, "metadata": METADATA, "spec": CONDITION})),
        "notificationTargets": {"type": "array", "minItems": 1, "items": form({"targetRef": NAME})},
    }
)
METRIC = form({"metricSource": form({"type": {"type": "string"}, "spec": {"type": "object", "minProperties": 1}})})
SLO = form(
    {
        "apiVersion": {"const": "openslo/v1"},
        "kind": {"const": "SLO"},
        "metadata": METADATA,
        "spec": form(
            {
                "description": DESCRIPTION,
                "service": NAME,
                "indicator": form({"metadata": METADATA, "spec": form({"thresholdMetric": METRIC})}),
                "timeWindow": one(form({"duration": LENGTH, "isRolling": {"const": True}})),
                "budgetingMethod": {"enum": ["Occurrences", "Timeslices"]},
                "objectives": one(
                    form({"op": OPERATOR, "value": NUMBER, "target": {**NUMBER, "minimum": 0, "exclusiveMaximum": 1}})
                ),
                "alertPolicies": {
                    "type": "array",
                    "items": form({"kind": {"const": "AlertPolicy"}, "metadata": METADATA, "spec": POLICY}),
                },
            }
        ),
    }
)
"""Rules of OpenSLO v1 for the keys that Tidemark writes.

Sources: its specification, and the rules of its JSON Schemas of v1 where these are narrower. `alertPolicies` are those
of the specification: the schemas have names there.
"""


def documents(kind: str, **slas: dict) -> list[dict]:
    done, refused = exported(kind, "flights", slas, file="slas.toml")
    assert refused == []
    return [*yaml.safe_load_all(as_yaml(done, refused))]


def refusals(kind: str, **slas: dict) -> list[str]:
    return [str(error) for error in exported(kind, "flights", slas, file="slas.toml")[1]]


def test_a_contract_has_the_form_of_the_standard() -> None:
    (contract,) = documents(ODCS, board=BOARD, by_six=BY_SIX)
    standard = json.loads(STANDARD.read_text(encoding="utf-8"))
    assert [error.message for error in Draft201909Validator(standard).iter_errors(contract)] == []
    assert contract["slaProperties"] == [
        {
            "id": "board",
            "element": "flight_board",
            "description": 'Owner: the "late" desk: #1',
            "property": "latency",
            "value": 2,
            "unit": "m",
        },
        {
            "id": "by_six",
            "element": "flight_board",
            "description": "Owner: desk",
            "property": "timeOfAvailability",
            "value": "06:00+00:00",
        },
    ]


def test_an_objective_is_an_slo_with_its_burn_rates() -> None:
    (slo,) = documents(OPENSLO, in_time=OBJECTIVE)
    assert [error.message for error in Draft201909Validator(SLO).iter_errors(slo)] == []
    assert (slo["apiVersion"], slo["kind"], slo["metadata"]["name"]) == ("openslo/v1", "SLO", "in-time")
    spec = slo["spec"]
    assert spec["objectives"] == [{"op": "lte", "value": 1.5, "target": 0.99}]
    assert spec["timeWindow"] == [{"duration": "7d", "isRolling": True}]
    assert spec["description"] == "Owner: carriers\nRunbook: https://wiki.example.org/late"
    conditions = [policy["spec"]["conditions"][0]["spec"] for policy in spec["alertPolicies"]]
    burn_rate = {"kind": "burnrate", "op": "gte", "alertAfter": "1m"}
    assert [(each["severity"], each["condition"]) for each in conditions] == [
        ("critical", {**burn_rate, "threshold": 14.4, "lookbackWindow": "1h"}),
        ("critical", {**burn_rate, "threshold": 6, "lookbackWindow": "6h"}),
        ("warning", {**burn_rate, "threshold": 1, "lookbackWindow": "3d"}),
    ]
    needed = {"alertWhenBreaching": True, "alertWhenResolved": True, "alertWhenNoData": False}
    for policy in spec["alertPolicies"]:
        assert needed.items() <= policy["spec"].items()
        assert policy["spec"]["notificationTargets"] == [{"targetRef": "carriers"}]


@pytest.mark.parametrize(
    ("kind", "slas"), [(ODCS, {"board": BOARD, "by_six": BY_SIX}), (OPENSLO, {"in_time": OBJECTIVE})]
)
def test_what_was_published_comes_back_as_it_was(kind: str, slas: dict) -> None:
    assert imported(kind, documents(kind, **slas), file="contract.yaml") == (slas, [])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (ODCS, {"warn_after": "1 min"}, "flights.x.warn_after: is set, but ODCS has no equivalent; write an"),
        (ODCS, {"measure": "records"}, "flights.x.measure: is records, which no property of ODCS means; only Tidemark"),
        (
            OPENSLO,
            {"measure": "records"},
            "flights.x.objective: is missing, and an SLO of OpenSLO is a share of records; only Tidemark can check it: "
            "leave it out of the other tool, or write an objective",
        ),
        (ODCS, {"error_after": None, "complete_by": "10 min"}, "flights.x.complete_by: is '10 min', but ODCS has"),
        (OPENSLO, {}, "flights.x.objective: is missing, and an SLO of OpenSLO is a share of records; publish it as"),
        (OPENSLO, {"objective": {}, "severity": "info"}, "flights.x.error_after: is set, but OpenSLO has no equ"),
        (OPENSLO, {**OBJECTIVE, "error_after": None, "runbook": "x" * 1_030}, "flights.x.runbook: makes a description"),
        (
            OPENSLO,
            {**OBJECTIVE, "error_after": None, "objective": {**OBJECTIVE["objective"], "window": "604801 s"}},
            "flights.x.objective.window: is 604801 s; write whole minutes for OpenSLO",
        ),
    ],
)  # fmt: skip
def test_a_key_without_an_equivalent_is_refused_by_name(kind: str, changes: dict, message: str) -> None:
    table = {key: value for key, value in {**BOARD, **changes}.items() if value is not None}
    (refusal,) = refusals(kind, x=table)
    assert refusal.startswith(f"slas.toml: {message}")


@pytest.mark.parametrize("name", ["x_", "x" * 56])
def test_a_name_that_openslo_does_not_allow_is_refused(name: str) -> None:
    (refusal,) = refusals(OPENSLO, **{name: OBJECTIVE})
    assert refusal.startswith(f"slas.toml: flights.{name}: makes '")


def test_maintenance_of_a_topology_is_refused_by_name() -> None:
    (refusal,) = refusals(ODCS, board=BOARD, maintenance=["daily 01:00-02:00"])
    assert refusal.startswith("slas.toml: flights.maintenance: is set, but ODCS has no times without alerts")
    assert documents(ODCS, maintenance=BOARD)[0]["slaProperties"][0]["id"] == "maintenance"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"property": "retention"},
            "property: is 'retention', but Tidemark judges only latency and timeOfAvailability",
        ),
        ({"driver": "regulatory"}, "driver: is set, but an SLA of Tidemark has no equivalent"),
        ({"description": "fresh"}, "description: names no owner; write description"),
        ({"unit": "y"}, "unit: is '2y', which is not a length; write ms, s, m, h or d"),
        ({"value": 0}, "unit: is '0days', which every measurement exceeds; write a length of at least 1 ms"),
        ({"element": "a.t, b.t"}, "element: is 'a.t, b.t'; name one table"),
    ],
)
def test_a_property_without_an_equivalent_is_refused_by_name(changes: dict, message: str) -> None:
    entry = {"property": "latency", "value": 2, "unit": "days", "element": "tab.ts", "description": "Owner: desk"}
    contract = [{"slaProperties": [entry, {**entry, **changes}]}]
    tables, (refusal,) = imported(ODCS, contract, file="c.yaml")
    assert tables == {"tab_latency": {"subject": "tab", "owner": "desk", "error_after": "2 d"}}
    assert str(refusal).startswith(f"c.yaml: slaProperties[1].{message}")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("spec", "budgetingMethod"),
            "Timeslices",
            "spec.budgetingMethod: is 'Timeslices', but Tidemark counts records",
        ),
        (
            ("spec", "timeWindow"),
            [{"duration": "1M", "isRolling": True}],
            "spec.timeWindow[0].duration: is '1M', which",
        ),
        (("spec", "timeWindow"), [{"duration": "7d"}], "spec.timeWindow[0].isRolling: is not true"),
        (("spec", "alertPolicies"), [], "spec.alertPolicies: has other burn rates than an objective of Tidemark"),
        (("spec", "objectives"), [], "spec.objectives: has 0 entries; write one SLO for each"),
        (("metadata", "labels"), {}, "metadata.labels: is set, but an SLA of Tidemark has no equivalent"),
        (("spec", "description"), "late", 'spec.description: names no owner; write description: "Owner: TEAM"'),
        (
            ("metadata", "displayName"),
            "In time",
            "metadata.displayName: is set, but an SLA of Tidemark has no",
        ),
        (("metadata",), None, "metadata.annotations: is None; write a table"),
        (("spec", "indicator"), {"spec": {"ratioMetric": {}}}, "spec.indicator: is not a thresholdMetric"),
        (("kind",), "Service", "kind: is 'Service' of 'openslo/v1'; write SLOs of openslo/v1"),
        (("spec", "indicator"), ["ratio"], "spec.indicator.spec: is ['ratio']; write a table"),
        (("spec", "objectives"), 5, "spec.objectives: is 5; write a list"),
        (
            ("spec", "objectives"),
            [{"op": "lte", "value": float("inf"), "target": 0.9}],
            "spec.objectives[0].value: is inf; write a number of seconds",
        ),
        (
            ("spec", "objectives"),
            [{"op": "lte", "value": 0.0004, "target": 0.9}],
            "spec.objectives[0].value: is 0.0004, which every measurement exceeds; write a length of at least 1 ms",
        ),
        (
            ("metadata", "annotations", "tidemark.io/min-records"),
            "many",
            "metadata.annotations.tidemark.io/min-records: is 'many'; write a number of records",
        ),
    ],
)
def test_an_slo_without_an_equivalent_is_refused_by_name(path: tuple, value: object, message: str) -> None:
    (slo,) = documents(OPENSLO, in_time=OBJECTIVE)
    part = slo
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    tables, (refusal,) = imported(OPENSLO, [slo], file="slo.yaml")
    name = "in-time" if slo["metadata"] else "SLO"
    assert (tables, str(refusal).startswith(f"slo.yaml: {name}.{message}")) == ({}, True), str(refusal)


def test_a_week_is_seven_days() -> None:
    (slo,) = documents(OPENSLO, in_time=OBJECTIVE)
    slo["spec"]["timeWindow"][0]["duration"] = "4w"
    tables, refused = imported(OPENSLO, [slo], file="slo.yaml")
    assert (tables["in_time"]["objective"]["window"], refused) == ("28 d", [])


def test_two_properties_of_one_name_are_refused() -> None:
    entry = {"id": "a", "property": "latency", "value": 2, "unit": "d", "element": "tab", "description": "Owner: desk"}
    tables, (refusal,) = imported(ODCS, [{"slaProperties": [entry, {**entry, "value": 3}]}], file="c.yaml")
    assert tables == {"a": {"subject": "tab", "owner": "desk", "error_after": "2 d"}}
    assert str(refusal) == "c.yaml: a: is the name of two SLAs; give each another id or name"


def test_the_commands_publish_and_read_the_projects_slas(tmp_path: Path) -> None:
    done = tidemark(PROJECT, "publish", "openslo")
    assert done.returncode == 0
    assert "# Left out: slas.toml: flights.board_is_fresh.objective: is missing" in done.stdout
    contract = tmp_path / "contract.yaml"
    written = [{"id": "fresh", "property": "latency", "value": 2, "unit": "h", "element": "flight_board"}]
    written = [
        {**each, "description": "Owner: desk"} for each in (*written, {**written[0], "id": "x", "element": "no"})
    ]
    contract.write_text(json.dumps({"kind": "DataContract", "slaProperties": written}), encoding="utf-8")
    back = tidemark(PROJECT, "suggest", "slas", "flights", "--from", str(contract))
    assert back.returncode == 1
    assert "# Left out: contract.yaml: flights.x.subject: is 'no', which has no staleness" in back.stdout
    assert tomllib.loads(back.stdout) == {
        "flights": {"fresh": {"subject": "flight_board", "owner": "desk", "error_after": "2 h"}}
    }


def test_an_invalid_topology_is_named_beside_the_published(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    (tmp_path / "expectations").mkdir()
    (tmp_path / "topologies" / "bad.toml").write_text('name = "bad"\n', encoding="utf-8")
    good = (PROJECT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8")
    (tmp_path / "topologies" / "flights.toml").write_text(good, encoding="utf-8")
    slas = 'maintenance = ["daily 01:00-02:00"]\n'
    slas += '[flights.board]\nsubject = "flight_board"\nerror_after = "2 h"\nowner = "desk"\n'
    (tmp_path / "expectations" / "slas.toml").write_text(slas, encoding="utf-8")
    for kind, place in (("dbt", "sources"), ("odcs", "slaProperties")):
        done = tidemark(tmp_path, "publish", kind)
        assert (done.returncode, "bad.toml: operators: is missing" in done.stderr) == (1, True)
        assert len(yaml.safe_load(done.stdout)[place]) == 1
    assert "# Left out: slas.toml: maintenance: is set, but ODCS has no times without alerts" in done.stdout


def test_slas_of_jobs_are_published_or_named(tmp_path: Path) -> None:
    (tmp_path / "topologies").mkdir()
    (tmp_path / "expectations").mkdir()
    sla = 'subject = "enrich:orders"\nmeasure = "records"\nover = "10 min"\nerror_below = 1\nowner = "shop"\n'
    slas = f"[shop]\nrecorded = true\n[shop.orders_come]\n{sla}"
    (tmp_path / "expectations" / "slas.toml").write_text(slas, encoding="utf-8")
    for kind in ("dbt", "odcs", "openslo"):
        done = tidemark(tmp_path, "--warehouse", str(tmp_path), "publish", kind)
        problem = f"slas.toml: shop: has no job in the warehouse {tmp_path}, so its SLAs are left out; run a job of it"
        assert (done.returncode, problem in done.stderr) == (1, True)
    query = RecordedQuery(name="enrich", query_id="1", sources={"enrich:orders": "topic:orders"})
    write_query(Layout(tmp_path), "shop", query)
    write_query(Layout(tmp_path), "without_slas", query)
    for kind, key in (("odcs", "measure"), ("openslo", "objective")):
        done = tidemark(tmp_path, "--warehouse", str(tmp_path), "publish", kind)
        (comment,) = done.stdout.strip().splitlines()
        assert comment.startswith(f"# Left out: slas.toml: shop.orders_come.{key}: is ")
        assert (done.returncode, done.stderr) == (0, "")
    done = tidemark(tmp_path, "--warehouse", str(tmp_path), "publish", "lineage")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("left out: shop, without_slas: ")


def test_an_empty_warehouse_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tidemark.spark_session", None)  # an import of it would fail
    address = ["--metastore", "thrift://127.0.0.1:1"]
    done = tidemark(PROJECT, "--warehouse", str(tmp_path), "publish", "hive", *address)
    assert (done.returncode, "has no Delta tables yet" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("publish", "dbt", "--send"), "--send is for lineage, got dbt"),
        (("run", "jobs", "--application", "job.py", "--time", "processing"), "leave out --time"),
    ],
)
def test_an_option_that_a_command_would_not_use_is_refused(tmp_path: Path, command: tuple[str, ...], said: str) -> None:
    done = tidemark(PROJECT, "--warehouse", str(tmp_path), *command)
    assert (done.returncode, said in done.stderr) == (1, True)
