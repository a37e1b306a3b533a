"""`tidemark suggest slas` proposes limits from a history worked out by hand.

Five weeks of checks, one an hour, end on Monday, 2026-03-02, 00:00 UTC. On weekdays from 07:00 to 19:00 the board is
8 s old, at all other hours 100 s.
"""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tidemark.cli.main import _parser
from tidemark.errors import InvalidArgument
from tidemark.model import topology
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.sla_spec import SlaSpec, parse
from tidemark.model.tables.catalog import ALERTS, INCIDENTS, LATENCY_ROLLUP, SLA_RESULTS, Table
from tidemark.query.sql import Warehouse
from tidemark.reports.report_tables import replace_rows
from tidemark.sla.suggestion import as_toml, suggest

HOUR = 3_600_000
NOW = 1_772_409_600_000  # 2026-03-02T00:00Z, a Monday
WEEK = 168 * HOUR
FLIGHTS = topology.load(CHECKOUT / "jobs" / "topologies" / "flights.toml")
SLAS = {
    "board": {"subject": "flight_board", "error_after": "1 min", "owner": 'the "desk"', "ignore_when_idle": True},
    "changes": {"subject": "changes", "warn_after": "1 min", "owner": "desk"},
    "complete": {"subject": "outcomes", "measure": "completeness", "error_after": "1 ms", "owner": "desk"},
}


def at(weeks_ago: int, day: int, hour: int) -> int:
    """An instant of a week that ended *weeks_ago*."""
    return NOW - (weeks_ago + 1) * WEEK + (24 * day + hour) * HOUR


CAUGHT, MISSED, GLITCH, EXCUSED = at(0, 2, 10), at(1, 5, 12), at(2, 1, 14), at(0, 3, 12)
"""Four exceptions.

90 s on a Wednesday; 200 s on a Saturday; 30 s without an incident; 1,000 s of an idle source.
"""
NIGHT = at(2, 0, 19)
"""An incident at night: its source was quiet."""


def age_s(at_ms: int) -> int:
    special = {CAUGHT: 90, MISSED: 200, GLITCH: 30, EXCUSED: 1_000}
    clock = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return special.get(at_ms, 8 if clock.weekday() < 5 and 7 <= clock.hour < 19 else 100)


def result(sla: str, at_ms: int, s: float, **columns: Any) -> dict[str, Any]:
    verdict = "error" if s >= 60 else "pass"
    return {
        "topology": "flights", "sla": sla, "subject": {"board": "flight_board"}.get(sla, sla), "measure": "staleness",
        "checked_at": at_ms, "run_id": f"{at_ms} {columns}", "observed_ms": 1_000 * s, "verdict": verdict,
        "error_after_ms": 60_000.0, "severity": "critical", **columns,
    }  # fmt: skip


def incident(name: str, from_ms: int, to_ms: int | None, *, cause: str | None, sla: str = "board") -> list[Any]:
    row = {"topology": "flights", "incident": name, "sla": sla, "severity": "critical", "subject": "flight_board"}
    opened = {**row, "change": "opened", "at": from_ms, "opened_at": from_ms, "broken_since": from_ms}
    ends = [] if to_ms is None else [{**opened, "change": "resolved", "at": to_ms}]
    alert = {**opened, "alert": f"alert-{name}", "incidents": [name], "cause": cause}
    return [[opened, *ends], [{key: alert[key] for key in alert if key != "incident"}]]


PROPOSAL = """\
# Proposed for the topology flights at 2026-03-02T00:00:00.000Z, from checks and rollups of a quarter.
# No check uses these limits until you copy them into slas.toml. A limit is 2 times the usual
# maximum of its hours of the week (UTC), rounded up; n is the number of measurements.

# board: 839 measurements in 5 weeks. The last 4 weeks would have had
#   with these limits: 1 false alarm, 1 of 2 breaks caught
#     without an alarm: missed
#   with the present limits: 20 false alarms, 2 of 2 breaks caught
[flights.board]
subject = "flight_board"
owner = "the \\"desk\\""
ignore_when_idle = true
error_after = "5 min"  # n = 590: usually at most 100 s
hours = [
  # n = 249: usually at most 8 s
  { zone = "UTC", days = ["Mon", "Tue", "Wed", "Thu", "Fri"], from = "08:00", to = "18:00", error_after = "20 s" },
]

# changes: 504 measurements in 3 weeks: too few, 4 weeks are needed, and an hour in 3 of them

# flight_board_by_hour: 0 measurements in 0 weeks: too few, 4 weeks are needed, and an hour in 3 of them

# carrier_delays_by_hour: 671 measurements in 4 weeks. The last 4 weeks would have had
#   with these limits: 0 false alarms, 0 of 0 breaks caught
[flights.carrier_delays_by_hour]
subject = "carrier_delays"
measure = "latency_p99"
over = "1 h"
owner = "tidemark"
error_after = "10 s"  # n = 671: usually at most 4 s"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suggest")

    def write(table: Table, rows: list[dict[str, Any]]) -> None:
        replace_rows(rows, table, Layout(folder).report_table("flights", table.name), where="true")

    hours = range(NOW - 5 * WEEK, NOW, HOUR)
    results = [result("board", ms, age_s(ms), **({"verdict": "pass"} if ms == EXCUSED else {})) for ms in hours]
    results += [
        result("board", EXCUSED + HOUR // 2, 5_000, quiet="maintenance"),
        result("board", CAUGHT + 1, 7_000, measure="watermark_lag"),
        result("board", NOW, 8_000),
        *(result("changes", ms, 5) for ms in hours if ms >= NOW - 3 * WEEK),
        *(result("flight_status", ms, 100) for ms in hours),
    ]
    write(SLA_RESULTS, results)
    incidents = [
        incident("caught", CAUGHT, CAUGHT + 2 * HOUR, cause="driver_dead"),
        incident("missed", MISSED, MISSED + HOUR, cause="source_quiet"),
        incident("night", NIGHT, NIGHT + 13 * HOUR, cause="source_quiet"),
        incident("expected", GLITCH, GLITCH + HOUR, cause=None),
        incident("checks", GLITCH, GLITCH + HOUR, cause=None, sla="checks_are_made"),
        incident("old", NOW - 4 * WEEK - HOUR, NOW - 4 * WEEK, cause="backlog"),
    ]
    changes, alerts = ([row for each in incidents for row in each[place]] for place in (0, 1))
    for row in changes:
        row["severity"] = "forecast" if row["incident"] == "expected" else "critical"
    # A person acknowledged the incident of a quiet source: it is a break.
    acknowledged = next(row for row in changes if row["incident"] == "missed")
    changes.append({**acknowledged, "change": "acknowledged", "at": MISSED + 1, "by": "Ann"})
    write(INCIDENTS, changes)
    write(ALERTS, alerts)
    of_rollup = {"scope": "operator", "topology": "flights", "grain": "hour", "operator": "carrier_delays"}
    starts = range(NOW - 4 * WEEK, NOW, HOUR)
    rolled_up = [{**of_rollup, "interval_start": ms, "interval_end": ms + HOUR, "p99_ms": 4_000.0} for ms in starts]
    rolled_up += [{**row, "grain": "day", "p99_ms": 9e9} for row in rolled_up[:3]]
    write(LATENCY_ROLLUP, rolled_up)
    return folder


def proposed(home: Path, slas: dict[str, Any] = SLAS, *, zone: str = "UTC", now_ms: int = NOW) -> str:
    specs = parse({"flights": slas}, FLIGHTS, file="slas.toml")
    hours = ZoneInfo(zone)
    found = suggest(Warehouse(home), FLIGHTS, specs, slas, zone=hours, now_ms=now_ms)
    return as_toml(found, FLIGHTS, zone=hours, now_ms=now_ms)


def test_the_proposal_has_limits_by_hour_with_their_evidence(home: Path) -> None:
    # At 07:00 and 18:00 the hour beside has 100 s. 16 s is rounded up to 20 s, 200 s to 5 min.
    # Of 840 checks one was excused, a Thursday at 12:00. 250 lie in the block.
    # In 4 weeks there are 20 nights and weekends, and the night at their start: with 1 min each is an alarm. The
    # Wednesday is another one, and the weekend of the Saturday is no false one.
    assert proposed(home) == PROPOSAL


def alarms(spec: SlaSpec) -> list[tuple[int, int]]:
    """Alarms of *spec* in four weeks, counted independently.

    An alarm ends with the second good check in a row: ten minutes lie between them.
    """
    times, begun, good = [], None, 0
    for ms in range(NOW - 4 * WEEK, NOW, HOUR):
        limit_ms = spec.at(ms).limits.error_after_ms  # type: ignore[union-attr]
        if ms != EXCUSED and 1_000 * age_s(ms) >= limit_ms:
            begun, good = begun or ms, 0
            continue
        good += 1
        if begun is not None and good == 2:
            times.append((begun, ms))
            begun = None
    return [*times, *([(begun, NOW)] if begun is not None else [])]


def test_the_proposal_loads_and_has_the_alarms_it_names(home: Path) -> None:
    specs = parse(tomllib.loads(proposed(home)), FLIGHTS, file="slas.toml")
    assert [spec.name for spec in specs] == ["board", "carrier_delays_by_hour"]
    breaks = [(CAUGHT, CAUGHT + 2 * HOUR), (MISSED, MISSED + HOUR)]
    counts = []
    for spec in (specs[0], parse({"flights": SLAS}, FLIGHTS, file="slas.toml")[0]):
        raised = alarms(spec)
        hits = [[begun < to and start < end for begun, end in raised] for start, to in breaks]
        counts.append((sum(not any(hit) for hit in zip(*hits, strict=True)), [any(hit) for hit in hits]))
    assert counts == [(1, [True, False]), (20, [True, True])]


def test_too_little_history_proposes_nothing(home: Path, tmp_path: Path) -> None:
    slas = {"changes": SLAS["changes"]}
    text = proposed(tmp_path, slas)
    assert parse(tomllib.loads(text), FLIGHTS, file="slas.toml")[0].name == "nothing_gets_lost"
    assert "# changes: 0 measurements in 0 weeks: too few" in text
    # A week earlier the board has 4 weeks.
    assert "# board: 672 measurements in 4 weeks." in proposed(home, now_ms=NOW - WEEK)
    assert "# board: 504 measurements in 3 weeks: too few" in proposed(home, now_ms=NOW - 2 * WEEK)


def test_a_limit_of_groups_is_shorter_than_their_time(home: Path) -> None:
    """Twice the usual 100 s is 5 min."""
    grouped = {"subject": "flight_status", "by": ["flight"], "error_after": "1 min", "owner": "desk"}
    for over, longer in (("2 min", "10 min"), ("5 min", "10 min"), ("301 s", "301 s")):
        text = proposed(home, {"flight_status": {**grouped, "over": over}})
        table = tomllib.loads(text)["flights"]["flight_status"]
        assert (table["error_after"], table["over"]) == ("5 min", longer)
        assert parse(tomllib.loads(text), FLIGHTS, file="slas.toml")[0].by == ("flight",)


def test_hours_are_those_of_the_zone(home: Path) -> None:
    # In winter 08:00 UTC is 13:30 in India.
    (block,) = tomllib.loads(proposed(home, zone="Asia/Kolkata"))["flights"]["board"]["hours"]
    assert (block["zone"], block["from"], block["to"]) == ("Asia/Kolkata", "13:00", "23:00")


def test_the_command_fails_without_a_proposal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> int:
        options = _parser().parse_args(["--warehouse", str(tmp_path), "suggest", "slas", "flights", *arguments])
        return options.run(options)

    assert run("--zone", "Europe/Berlin") == 1
    printed = capsys.readouterr().out
    assert "(Europe/Berlin), rounded up" in printed
    # Its SLAs are those of the project.
    assert "# board_is_fresh: 0 measurements in 0 weeks: too few" in printed
    with pytest.raises(InvalidArgument, match=r"'Berlin' is no time zone; write a name such as --zone Europe/Berlin"):
        run("--zone", "Berlin")
