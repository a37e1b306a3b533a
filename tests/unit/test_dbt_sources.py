"""dbt judges the freshness of tables by the limits of their SLAs."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

from support.command_line import tidemark
from tidemark.cli.outside.dbt_sources import sources
from tidemark.model import topology
from tidemark.model.sla_spec import parse

PROJECT = Path(__file__).parents[2]
TOML = tomllib.loads((PROJECT / "jobs" / "topologies" / "flights.toml").read_text(encoding="utf-8"))
TOML["operators"]["current_carriers"] = {
    "kind": "sink",
    "input": "carrier_state",
    "table": "carriers",
    "mode": "current",
    "key": ["carrier"],
}
WITH_CURRENT_ROWS = topology.parse(TOML, file="flights.toml")
GOOD = {"subject": "flight_board", "warn_after": "90 min", "error_after": "48 h", "owner": 'the "late" desk: #1'}
CHANGES = {"subject": "changes", "error_after": "2 h", "owner": "desk", "ignore_when_idle": True}


def text_of(**slas: dict) -> str:
    specs = parse({"flights": slas}, WITH_CURRENT_ROWS, file="slas.toml")
    return sources([("flights", specs)], file="slas.toml", schema="main")


def test_a_staleness_sla_is_freshness_of_its_table() -> None:
    text = text_of(board=GOOD, changes=CHANGES)
    assert yaml.safe_load(text) == {
        "version": 2,
        "sources": [
            {
                "name": "flights",
                "schema": "main",
                "tables": [
                    {
                        "name": "flight_board",
                        "description": 'SLA flights.board of the "late" desk: #1',
                        "config": {
                            "loaded_at_field": "timestamp",
                            "freshness": {
                                "warn_after": {"count": 90, "period": "minute"},
                                "error_after": {"count": 2, "period": "day"},
                            },
                        },
                    },
                    {
                        "name": "changes",
                        "description": "SLA flights.changes of desk; Tidemark passes it while its sources are idle, "
                        "dbt does not",
                        "config": {
                            "loaded_at_field": "timestamp",
                            "freshness": {
                                "warn_after": None,
                                "error_after": {"count": 2, "period": "hour"},
                                "filter": "topology = 'flights'",
                            },
                        },
                    },
                ],
            }
        ],
    }


def test_other_measures_are_no_freshness() -> None:
    records = {"subject": "flight_board", "measure": "records", "error_below": 1, "owner": "desk"}
    assert text_of(records=records) == "version: 2\nsources: []"


@pytest.mark.parametrize(
    ("changes", "comment"),
    [
        (
            {"warn_after": "30 s"},
            "# Left out: slas.toml: flights.board.warn_after: is 30 s, but dbt counts whole minutes, at least 1; "
            'write a number of minutes, such as "1 min"',
        ),
        (
            {"calendar": {"zone": "UTC", "from": "07:00", "to": "19:00"}},
            "# Left out: slas.toml: flights.board.calendar: is set, but dbt judges at every hour; "
            "write an SLA without this key for dbt",
        ),
        (
            {"subject": "carriers", "place": "table"},
            "# Left out: slas.toml: flights.board.place: is 'table', but dbt reads the view; "
            "write an SLA without this key for dbt",
        ),
        (
            {"subject": "carrier_state", "by": ["carrier"], "over": "60 h"},
            "# Left out: slas.toml: flights.board.by: is set, but dbt judges a table as a whole; "
            "write an SLA without this key for dbt",
        ),
    ],
)
def test_what_dbt_cannot_express_is_left_out_with_a_remedy(changes: dict, comment: str) -> None:
    assert text_of(board={**GOOD, **changes}) == f"{comment}\nversion: 2\nsources: []"


def test_a_second_sla_of_a_table_is_left_out() -> None:
    text = text_of(board=GOOD, again={**GOOD, "error_after": "3 h"})
    assert text.splitlines()[0] == (
        "# Left out: slas.toml: flights.again.subject: is 'flight_board', which has the freshness of another SLA in "
        "dbt; write one SLA for the staleness of a table"
    )
    assert text.count("error_after") == 1


def test_the_command_prints_the_sources_of_the_project() -> None:
    done = tidemark(PROJECT, "publish", "dbt")
    (flights,) = [each for each in yaml.safe_load(done.stdout)["sources"] if each["name"] == "flights"]
    assert (flights["schema"], [table["name"] for table in flights["tables"]]) == (
        "tidemark",
        ["flight_board", "changes"],
    )
