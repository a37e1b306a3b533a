"""Renders the page of a topology's newest SLA check.

It shows its error budgets, incidents and contracts too. The page is one HTML file without script.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path

import polars as pl
from markupsafe import Markup

from tidemark.facts.alerts import open_alerts
from tidemark.facts.answers import Row, Tables, answers_over
from tidemark.facts.checks import MEASURED, newest_check
from tidemark.facts.fact_tables import Stored
from tidemark.facts.incidents import newest_incidents
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, utc
from tidemark.model.settings.lengths import for_people
from tidemark.model.tables.catalog import ALERTS, DECISIONS, EXPECTATION_RESULTS, INCIDENTS, SLA_RESULTS
from tidemark.reports.pages.charts import share_lines
from tidemark.reports.pages.templates import POLICY, REFRESH_S, template
from tidemark.reports.pages.topology_state import VERDICT_WORDS, unchecked_text
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Verdict
from tidemark.sla.incidents.tables import worst_text
from tidemark.storage.location import replace

READS = frozenset({SLA_RESULTS.name, EXPECTATION_RESULTS.name, INCIDENTS.name, ALERTS.name, DECISIONS.name})
NAME = "slas"
"""Name of the page as a file and under `/tidemark/pages/TOPOLOGY`."""
MOST_INCIDENTS = 50
MOST_DECISIONS = 20
OF_SLA = (*MEASURED, "owner", "runbook")
EXPECTED = """
    SELECT * FROM expectation_results WHERE topology = $1
    QUALIFY last_checked_at = max(last_checked_at) OVER (PARTITION BY "table" IS NULL)
    ORDER BY "table" IS NOT NULL, sub_topology NULLS LAST, "table", suite DESC, "column", severity
"""
"""Selects what the suites found last, of contracts and of checks.

Suites judge later than the check that asks for them, and not after each one: what they found stands until the next
time.
"""
BUDGETS = """
    SELECT *, epoch_ms(checked_at) AS at_ms FROM error_budgets WHERE topology = $1
    QUALIFY row_number() OVER (PARTITION BY objective, date_trunc('hour', checked_at) ORDER BY checked_at DESC) = 1
    ORDER BY objective, checked_at
"""
"""Selects the state of error budgets, the last of each hour."""
DECISIONS_OF = f"""
    SELECT * FROM decisions WHERE topology = $1 AND outcome IS NULL
    ORDER BY decided_at DESC, subject LIMIT {MOST_DECISIONS}
"""
WORST_FIRST = {"error": 0, "ahead_of_clock": 1, "never_loaded": 2, "warn": 3, "unknown": 4, "pass": 5}


def sla_page(warehouse: Path, topology: str, model: Row | None = None, *, stored: Stored | None = None) -> str:
    """Returns the page of *topology* as HTML, from the tables in *warehouse*.

    With a page *model* it has links to the other pages, refreshes itself, and is about the instant of the model, by the
    tables that were *stored* when the model was made. Without, it stands alone, and is about all that is known.
    """
    layout = Layout(warehouse)
    only = {layout.report_table(topology, name) for name in READS}
    return _page(answers_over(warehouse, topology, only=only, stored=stored), layout, topology, model)


def write_sla_page(layout: Layout, topology: str) -> None:
    """Replaces the page of *topology* atomically: readers see the old one or the new one."""
    file = layout.report_pages(topology) / f"{NAME}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, sla_page(layout.warehouse, topology))


def _page(tables: Tables, layout: Layout, topology: str, model: Row | None) -> str:
    at_ms = round(model["at"].timestamp() * 1_000) if model else None
    until = [] if at_ms is None else [pl.col("checked_at") <= utc(at_ms)]
    run = newest_check(tables.stored, layout, topology, *until, columns=OF_SLA)
    slas = sorted(run.rows, key=lambda row: WORST_FIRST.get(row["verdict"], 0)) if run else []
    expectations: list[Row] = []
    on_tables: list[Row] = []
    for row in tables.ask(EXPECTED, [topology]).objects:
        # Only contracts are about tables.
        (expectations if row["table"] is None else on_tables).append(row)
    newest = newest_incidents(tables, topology, MOST_INCIDENTS, at_ms=at_ms)
    incidents = [row | {"worst": worst_text(row)} for row in newest]
    return template("sla/page.html.j2").render(
        topology=topology,
        model={"cause": None, **model} if model else None,
        words=VERDICT_WORDS,
        names=[*(row["culprit"] for row in slas), *(_names(topology, model) if model else ())],
        unchecked=unchecked_text(model) if model and run else None,
        refresh_s=REFRESH_S if model else None,
        policy=Markup(POLICY),
        run=run,
        slas=slas,
        broken=[row for row in slas if row["verdict"] in BROKEN - {Verdict.WARN}],
        warned=[row for row in slas if row["verdict"] == Verdict.WARN],
        unknown=[row for row in slas if row["verdict"] == "unknown"],
        budgets=_budgets(tables.ask(BUDGETS, [topology]).objects, {row["objective"] for row in slas}),
        alerts=open_alerts(tables, topology, at_ms=at_ms),
        incidents=incidents,
        # An incident stays open for a while after its SLA passes again.
        open_incidents={row["sla"]: row for row in incidents if row["resolved_at"] is None},
        decisions=tables.ask(DECISIONS_OF, [topology]).objects,
        expectations=[row | {"observed": observed_text(row["observed"], row["column"])} for row in expectations],
        contracts=_contracts(on_tables),
    )


def _names(topology: str, model: Row) -> list[str]:
    """Returns the names in sentences about *topology*: those of its operators and streams."""
    return [
        *model.get("operators", ()),
        *(f"{topology}/{stream['sub_topology']}" for stream in model.get("streams", ())),
    ]


def _budgets(rows: Sequence[Row], objectives: Collection[str | None]) -> list[Row]:
    """Returns the newest state of each budget, with its `chart`.

    The chart covers the window. *rows* are those of BUDGETS; those of other *objectives* are left out.
    """
    budgets = []
    for objective, of_objective in groupby(rows, key=lambda row: row["objective"]):
        states = list(of_objective)
        newest = states[-1]
        if objective in objectives:
            window = Interval(newest["at_ms"] - newest["window_ms"], newest["at_ms"])
            points = [{"name": objective, "at_ms": state["at_ms"], "value": state["budget_left"]} for state in states]
            shown = [point for point in points if point["at_ms"] >= window.start_ms]
            budgets.append({**newest, "chart": share_lines(shown, window, 0)})
    return budgets


def observed_text(observed: str | None, columns: str | None) -> str:
    """Formats what an expectation observed for people.

    Args:
        observed: JSON, as in expectation_results: a value, or the values that broke it.
        columns: the names of its columns; one whose name ends with _ms has lengths of time.

    >>> observed_text("1234", "n"), observed_text("[]", "n"), observed_text("[[300.0, 458.91]]", "warn_after_ms, n")
    ('1,234', '–', 'warn after 300 ms, n 458.9')
    >>> observed_text('["warn", "error"]', "verdict"), observed_text('[{"batch_id": 7}]', None)
    ('warn; error', 'batch id 7')
    """
    try:
        value = json.loads(observed or "null")
    except ValueError:
        return observed or "–"
    names = columns.split(", ") if columns else []
    values = value if isinstance(value, list) else [] if value is None else [value]
    return "; ".join(_of_columns(each, names) for each in values) or "–"


def _of_columns(value: object, names: Sequence[str]) -> str:
    """Returns *value*, a value of one column or a value of each, with the names of several."""
    match value:
        case dict():
            pairs = [*value.items()]
        case list():
            pairs = [*zip(names, value, strict=False)]
        case _:
            return _of_column(value, names[0] if names else "")
    return ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} {_of_column(each, name)}" for name, each in pairs)


def _of_column(value: object, name: str) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float() if name.endswith("_ms"):
            return for_people(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"
    return str(value)


def _contracts(rows: Sequence[Row]) -> list[Row]:
    """Returns one row per table, broken contracts first.

    *rows* are those of expectation_results about contracts. The rows of a table come one after another.
    """
    by_table = []
    for (sub_topology, table), parts in groupby(rows, key=lambda row: (row["sub_topology"], row["table"])):
        of_table = list(parts)
        broken = [
            row
            | {
                "observed": observed_text(row["observed"], row["column"]),
                "example": observed_text(row["example"], None),
            }
            for row in of_table
            if not row["success"]
        ]
        first = {**of_table[0], "sub_topology": sub_topology, "table": table}
        by_table.append({**first, "parts": len(of_table), "broken": broken})
    return sorted(by_table, key=lambda row: not row["broken"])
