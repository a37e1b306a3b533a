"""Writes SLAs as data contracts (ODCS) and SLOs (OpenSLO), and reads these.

Both ways go between the table of an SLA in its file and one entry of the other format. A key without an equivalent is
refused by name: no promise changes on the way. Sources: Open Data Contract Standard v3.1.0, `slaProperties`; OpenSLO
v1, kinds SLO, AlertPolicy and AlertCondition.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.escaping import one_line
from tidemark.model.settings.toml_keys import Keys, duration_ms, length_in_toml
from tidemark.model.sla_spec import BURN_WINDOWS, MAINTENANCE, WINDOW_MS, Measure, slas_of

Entry = dict[str, Any]
ODCS, OPENSLO = "odcs", "openslo"
SUBJECT, MIN_RECORDS = "tidemark.io/subject", "tidemark.io/min-records"
"""Annotations of an SLO for keys that OpenSLO leaves to its users."""
MEASURES_OF_ODCS: Collection[str] = frozenset({Measure.STALENESS, Measure.COMPLETE_BY})
ONLY_HERE = "only Tidemark can check it: leave it out of the other tool"
UNITS = {"ms": "ms", "s": "s", "min": "m", "h": "h", "d": "d"}
"""Units of lengths in SLA files, and those of ODCS and OpenSLO."""
LONGEST_DESCRIPTION = 1_050
"""Most characters of a description of OpenSLO."""
_OWNER = re.compile(r"Owner: (.+)")
_OWNER_AND_RUNBOOK = re.compile(r"Owner: (.+)(?:\nRunbook: ((?s:.+)))?")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SHORTHAND = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]+)")
_TIME = re.compile(r"(\d\d:\d\d)(?::00)?(?:Z|\+00:00)")


def exported(
    kind: str, topology: str, slas: Mapping[str, Entry], *, file: str
) -> tuple[list[Entry], list[InvalidSpec]]:
    """Returns the documents of a topology, and the refusals.

    Args:
        kind: ODCS or OPENSLO.
        topology: its name.
        slas: the valid tables of the file of SLAs, by name.
        file: its name, for messages.
    """
    of_slas = slas_of(slas)
    entries, refused = _each(of_slas.items(), _property if kind == ODCS else _slo, file, topology)
    if MAINTENANCE in {*slas} - {*of_slas}:
        refused.append(without_maintenance(kind, f"{topology}.{MAINTENANCE}", file=file))
    if kind == OPENSLO or not entries:
        return entries, refused
    contract = {"apiVersion": "v3.1.0", "kind": "DataContract", "id": topology, "name": topology}
    return [{**contract, "version": "1.0.0", "status": "active", "slaProperties": entries}], refused


def imported(kind: str, documents: Sequence[Entry], *, file: str) -> tuple[dict[str, Entry], list[InvalidSpec]]:
    """Returns tables of SLAs by name, and the refusals."""
    named: list[tuple[str, Any]] = []
    for document in documents:
        if kind == ODCS:
            properties = document.get("slaProperties") or []
            properties = properties if isinstance(properties, list) else [properties]
            named += ((f"slaProperties[{number}]", each) for number, each in enumerate(properties))
        else:
            metadata = document.get("metadata")
            named.append((str(metadata.get("name") if isinstance(metadata, dict) else document.get("kind")), document))
    named_tables, refused = _each(named, _of_property if kind == ODCS else _of_slo, file, "")
    tables: dict[str, Entry] = {}
    for name, table in named_tables:
        if name in tables:
            refused.append(InvalidSpec.at(file, name, "is the name of two SLAs", "give each another id or name"))
        tables.setdefault(name, table)
    if kind == ODCS and any("slaDefaultElement" in document for document in documents):
        problem = "is set, but it is deprecated and read by none"
        refused.append(InvalidSpec.at(file, "slaDefaultElement", problem, "write element at each property"))
    return tables, refused


def _each(
    named: Iterable[tuple[str, Any]], convert: Callable[[Keys, str], Any], file: str, place: str
) -> tuple[list[Any], list[InvalidSpec]]:
    """Converts the table of each name; returns the results and the refusals."""
    done, refused = [], []
    for name, table in named:
        try:
            keys = Keys(file, f"{place}.{name}".removeprefix("."), table if isinstance(table, dict) else {})
            done.append(convert(keys, name))
        except InvalidSpec as error:
            refused.append(error)
    return done, refused


def without_maintenance(kind: str, key: str, *, file: str) -> InvalidSpec:
    """Returns the refusal of times without alerts at *key*."""
    problem = f"is set, but {_title(kind)} has no times without alerts"
    return InvalidSpec.at(file, key, problem, "write them into the other tool")


def _title(kind: str) -> str:
    return "ODCS" if kind == ODCS else "OpenSLO"


def _refuse_others(keys: Keys, place: str, allowed: Collection[str], what: str, remedy: str) -> None:
    """Refuses keys at *place* of a table that are not *allowed*."""
    for key in _at(keys, place):
        if key not in allowed:
            keys.fail(f"{place}.{key}".removeprefix("."), f"is set, but {what} has no equivalent", remedy)


def _at(keys: Keys, place: str) -> Entry:
    """Returns the table at the dotted *place*, or an empty one."""
    table: Any = keys.content
    for step in filter(None, place.split(".")):
        if isinstance(table, list) and step.isdecimal():
            table = table[int(step)]
        elif isinstance(table, dict):
            table = table.get(step, {})
        else:
            break
    if not isinstance(table, dict):
        keys.fail(place, f"is {table!r}", "write a table")
    return table


def _property(keys: Keys, name: str) -> Entry:
    """Returns the `slaProperties` of ODCS for an SLA."""
    table = keys.content
    measure = _measure(table)
    alone = "write an SLA without this key for ODCS"
    if "objective" in table:
        problem = "is an objective, which no property of ODCS means"
        keys.fail("objective", problem, "publish it as OpenSLO, or leave it out")
    if measure not in MEASURES_OF_ODCS:
        keys.fail("measure", f"is {measure!s}, which no property of ODCS means", ONLY_HERE)
    limit = "error_after" if measure == Measure.STALENESS else "complete_by"
    _refuse_others(keys, "", ("subject", "measure", "owner", limit), "ODCS", alone)
    entry = {"id": name, "element": table["subject"], "description": f"Owner: {table['owner']}"}
    if limit not in table:
        keys.fail(limit, "is not set, but a property of ODCS has a value", f"write {limit}")
    if limit == "error_after":
        number, unit = _number_and_unit(duration_ms(table[limit]) or 0)
        return {**entry, "property": "latency", "value": number, "unit": unit}
    clock, _, zone = table[limit].partition(" ")
    if not re.fullmatch(r"\d\d:\d\d", clock) or zone not in {"", "UTC"}:
        problem = f"is {table[limit]!r}, but ODCS has times of day with an offset"
        keys.fail(limit, problem, 'write a time of day in UTC, such as "06:00"')
    return {**entry, "property": "timeOfAvailability", "value": f"{clock}+00:00"}


def _measure(table: Mapping[str, Any]) -> str:
    """Returns what the SLA of *table* measures; it has no objective."""
    return str(table.get("measure", Measure.COMPLETE_BY if "complete_by" in table else Measure.STALENESS))


def _of_property(keys: Keys, _place: str) -> tuple[str, Entry]:
    """Returns name and table of the SLA of one of ODCS' `slaProperties`."""
    entry = keys.content
    remedy = "leave it out of the contract, or write the SLA by hand"
    allowed = ("id", "property", "value", "unit", "element", "description")
    _refuse_others(keys, "", allowed, "an SLA of Tidemark", remedy)
    kind = str(entry.get("property")).lower()
    if kind not in {"latency", "ly", "freshness", "timeofavailability"}:
        problem = f"is {entry.get('property')!r}, but Tidemark judges only latency and timeOfAvailability"
        keys.fail("property", problem, remedy)
    owner = _OWNER.fullmatch(str(entry.get("description", "")))
    if owner is None:
        keys.fail("description", "names no owner", 'write description: "Owner: TEAM"')
    subject = str(entry.get("element", "")).partition(".")[0]
    if not subject or "," in str(entry.get("element")):
        keys.fail("element", f"is {entry.get('element')!r}", "name one table")
    name = re.sub(r"\W+", "_", str(entry.get("id") or f"{subject}_{kind}")).lower()
    table: Entry = {"subject": subject, "owner": owner[1]}
    if kind == "timeofavailability":
        if (time := _TIME.fullmatch(str(entry.get("value")))) is None:
            keys.fail("value", f"is {entry.get('value')!r}", 'write a time in UTC, such as "06:00+00:00"')
        return name, {**table, "complete_by": time[1]}
    return name, {**table, "error_after": _length(keys, f"{entry.get('value')}{entry.get('unit', '')}", "unit")}


def _number_and_unit(length_ms: int) -> tuple[int, str]:
    number, unit = length_in_toml(length_ms).split(" ")
    return int(number), UNITS[unit]


def _length(keys: Keys, text: str, key: str) -> str:
    """Returns a length as SLA files have it, such as `2 d`."""
    match = _SHORTHAND.fullmatch(text)
    words = {"m": "min", "minute": "min", "second": "s", "hour": "h", "hr": "h", "day": "d"}
    unit = match[2].lower() if match else ""
    unit = words.get(unit.removesuffix("s") if len(unit) > 2 else unit, unit)
    number = float(match[1]) if match else 0
    if unit == "w":
        number, unit = 7 * number, "d"
    # In OpenSLO M is a month.
    if match is None or match[2] == "M" or (length_ms := duration_ms(f"{number} {unit}")) is None:
        keys.fail(key, f"is {text!r}, which is not a length", "write ms, s, m, h or d, such as 30s")
    return _above_zero(keys, length_ms, text, key)


def _above_zero(keys: Keys, length_ms: int, seen: Any, key: str) -> str:
    """Returns a length of an SLA file, of at least 1 ms."""
    if length_ms < 1:
        keys.fail(key, f"is {seen!r}, which every measurement exceeds", "write a length of at least 1 ms")
    return length_in_toml(length_ms)


def _slo(keys: Keys, name: str) -> Entry:
    """Returns the SLO of OpenSLO for an objective, with its alerts."""
    table, topology = keys.content, keys.at.removesuffix(f".{name}")
    if "objective" not in table:
        problem = "is missing, and an SLO of OpenSLO is a share of records"
        other = "publish it as ODCS" if _measure(table) in MEASURES_OF_ODCS else ONLY_HERE
        keys.fail("objective", problem, f"{other}, or write an objective")
    allowed = ("subject", "owner", "runbook", "objective")
    _refuse_others(keys, "", allowed, "OpenSLO", "write an SLA without this key")
    objective = table["objective"]
    window_ms = duration_ms(objective["window"]) if "window" in objective else WINDOW_MS
    notes = {SUBJECT: table["subject"]}
    notes |= {MIN_RECORDS: str(objective["min_records"])} if "min_records" in objective else {}
    threshold_ms = duration_ms(objective["latency"]) or 0
    slo = name.replace("_", "-")
    if not _DNS_LABEL.fullmatch(f"{slo}-latency") or slo.endswith("-"):
        remedy = "write at most 55 letters, with no _ at the end"
        raise InvalidSpec.at(keys.file, keys.at, f"makes {slo!r}, which is no name in OpenSLO", remedy)
    # Values of labels and annotations have at most 63 letters, and none of a URL.
    description = f"Owner: {table['owner']}" + (f"\nRunbook: {table['runbook']}" if "runbook" in table else "")
    if len(description) > LONGEST_DESCRIPTION:
        keys.fail(
            "runbook", f"makes a description of {len(description)} letters", f"keep it below {LONGEST_DESCRIPTION}"
        )
    query = f'tidemark_latency_seconds{{topology="{topology}",operator="{table["subject"]}"}}'
    source = {"type": "Prometheus", "spec": {"query": query}}
    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": slo, "annotations": notes},
        "spec": {
            "description": description,
            "service": topology.replace("_", "-"),
            "indicator": {
                "metadata": {"name": f"{slo}-latency"},
                "spec": {"thresholdMetric": {"metricSource": source}},
            },
            "timeWindow": [{"duration": _shorthand(keys, window_ms or 0), "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"op": "lte", "value": threshold_ms / 1_000, "target": objective["target"]}],
            "alertPolicies": [*_alerts(keys, slo, table["owner"])],
        },
    }


def _alerts(keys: Keys, slo: str, owner: str) -> Iterator[Entry]:
    """Yields the burn rates of an objective as alert policies.

    Their target has the name of the *owner*.
    """
    target = re.sub(r"[^a-z0-9]+", "-", owner.lower())[:63].strip("-") or "owner"
    for window in BURN_WINDOWS:
        over = _shorthand(keys, window.over_ms)
        # OpenSLO has no shorter length than a minute.
        condition = {"kind": "burnrate", "op": "gte", "threshold": window.rate, "lookbackWindow": over}
        condition["alertAfter"] = "1m"
        yield {
            "kind": "AlertPolicy",
            "metadata": {"name": f"{slo}-{over}"},
            "spec": {
                "alertWhenBreaching": True,
                "alertWhenResolved": True,
                "alertWhenNoData": False,
                "conditions": [
                    {
                        "kind": "AlertCondition",
                        "metadata": {"name": f"{slo}-{over}"},
                        "spec": {"severity": window.severity.value, "condition": condition},
                    }
                ],
                "notificationTargets": [{"targetRef": target}],
            },
        }


def _of_slo(keys: Keys, _name: str) -> tuple[str, Entry]:
    """Returns name and table of the objective of an SLO."""
    document = keys.content
    if document.get("kind") != "SLO" or document.get("apiVersion") != "openslo/v1":
        problem = f"is {document.get('kind')!r} of {document.get('apiVersion')!r}"
        keys.fail("kind", problem, "write SLOs of openslo/v1, with inline indicators and alerts")
    notes, spec = _at(keys, "metadata.annotations"), _at(keys, "spec")
    remedy = "leave it out, or write the SLA by hand"
    _refuse_others(keys, "metadata.annotations", (SUBJECT, MIN_RECORDS), "an SLA of Tidemark", remedy)
    _refuse_others(keys, "metadata", ("name", "annotations"), "an SLA of Tidemark", remedy)
    allowed = ("description", "service", "indicator", "timeWindow", "budgetingMethod", "objectives", "alertPolicies")
    _refuse_others(keys, "spec", allowed, "an SLA of Tidemark", remedy)
    if SUBJECT not in notes:
        keys.fail(f"metadata.annotations.{SUBJECT}", "is missing", "name the operator whose latency is promised")
    described = _OWNER_AND_RUNBOOK.fullmatch(str(spec.get("description", "")))
    if described is None:
        keys.fail("spec.description", "names no owner", 'write description: "Owner: TEAM"')
    if [*_at(keys, "spec.indicator.spec")] != ["thresholdMetric"]:
        keys.fail("spec.indicator", "is not a thresholdMetric", "promise a latency in seconds: thresholdMetric")
    if spec.get("budgetingMethod") != "Occurrences":
        problem = f"is {spec.get('budgetingMethod')!r}, but Tidemark counts records"
        keys.fail("spec.budgetingMethod", problem, "write Occurrences")
    window = _only(keys, "timeWindow")
    _refuse_others(keys, "spec.timeWindow.0", ("duration", "isRolling"), "a window of Tidemark", remedy)
    if not window.get("isRolling"):
        keys.fail("spec.timeWindow[0].isRolling", "is not true", "write a rolling window")
    promised = _only(keys, "objectives")
    _refuse_others(keys, "spec.objectives.0", ("op", "value", "target"), "an objective of Tidemark", remedy)
    name = str(document["metadata"].get("name")).replace("-", "_")
    if "alertPolicies" in spec and spec["alertPolicies"] != [*_alerts(keys, name.replace("_", "-"), described[1])]:
        problem = "has other burn rates than an objective of Tidemark"
        keys.fail("spec.alertPolicies", problem, "leave it out: docs/alerts.md has the burn rates")
    if not str(notes.get(MIN_RECORDS, "0")).isdecimal():
        keys.fail(f"metadata.annotations.{MIN_RECORDS}", f"is {notes[MIN_RECORDS]!r}", "write a number of records")
    objective: Entry = {"latency": _latency(keys, promised), "target": promised.get("target")}
    objective["window"] = _length(keys, str(window.get("duration")), "spec.timeWindow[0].duration")
    objective |= {"min_records": int(notes[MIN_RECORDS])} if MIN_RECORDS in notes else {}
    table: Entry = {"subject": notes[SUBJECT], "owner": described[1]}
    table |= {"runbook": described[2]} if described[2] else {}
    return name, {**table, "objective": objective}


def _latency(keys: Keys, promised: Entry) -> str:
    """Returns the latency of the only entry of `objectives`."""
    seconds = promised.get("value")
    if promised.get("op") != "lte":
        keys.fail("spec.objectives[0].op", f"is {promised.get('op')!r}", "write op: lte, and a value in seconds")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        keys.fail("spec.objectives[0].value", f"is {seconds!r}", "write a number of seconds")
    return _above_zero(keys, round(seconds * 1_000), seconds, "spec.objectives[0].value")


def _only(keys: Keys, key: str) -> Entry:
    """Returns the only entry of a list of the `spec`."""
    values = keys.content["spec"].get(key) or []
    if not isinstance(values, list):
        keys.fail(f"spec.{key}", f"is {values!r}", "write a list")
    if len(values) != 1:
        keys.fail(f"spec.{key}", f"has {len(values)} entries", "write one SLO for each")
    return _at(keys, f"spec.{key}.0")


def _shorthand(keys: Keys, length_ms: int) -> str:
    number, unit = _number_and_unit(length_ms)
    if unit in {"ms", "s"}:
        keys.fail("objective.window", f"is {length_in_toml(length_ms)}", "write whole minutes for OpenSLO")
    return f"{number}{unit}"


def as_yaml(documents: Iterable[Entry], refused: Iterable[InvalidSpec]) -> str:
    """Returns *documents* as YAML; comments have the refusals."""
    comments = [f"# Left out: {one_line(str(error))}" for error in refused]
    return "\n".join([*comments, "\n---\n".join("\n".join(_lines(each)) for each in documents)])


def _lines(value: Any) -> Iterator[str]:
    """Yields the lines of a table or list."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        head = f"{key}:" if isinstance(value, dict) else "-"
        if isinstance(each, dict | list) and each:
            yield head
            yield from (f"  {line}" for line in _lines(each))
        else:
            yield f"{head} {json.dumps(each, ensure_ascii=False)}"
