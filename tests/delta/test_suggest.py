"""`tidemark suggest slas` proposes limits from a week worked out by hand.

The week ends on Monday, 2026-03-02, 00:30 UTC.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tidemark.cli.main import _parser
from tidemark.clock import wall_clock_ms
from tidemark.model import topology
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.model.tables.catalog import LATENCY_ROLLUP, SLA_RESULTS
from tidemark.query.sql import Warehouse
from tidemark.sla.suggestion import suggest
from tidemark.storage.delta.report_tables import replace_rows

MINUTE, HOUR = 60_000, 3_600_000
NOW = 1_772_411_400_000  # 2026-03-02T00:30Z
SUNDAY = NOW - 24 * HOUR - HOUR // 2  # 2026-03-01T00:00Z
FLIGHTS = topology.load(CHECKOUT / "jobs" / "topologies" / "flights.toml")
SLAS = {
    "board": {"subject": "flight_board", "warn_after": "50 s", "error_after": "1 min", "owner": "desk"},
    "changes": {"subject": "changes", "warn_after": "1 min", "owner": "desk"},
    "status": {"subject": "flight_status", "by": ["flight"], "over": "2 min", "error_after": "110 s", "owner": "desk"},
    "late": {"subject": "flight_events", "measure": "watermark_lag", "error_after": "1 min", "owner": "desk"},
    "in_time": {"subject": "flight_board", "measure": "latency_p99", "error_after": "1 min", "owner": "desk"},
    "complete": {"subject": "outcomes", "measure": "completeness", "error_after": "1 ms", "owner": "desk"},
}


def check(sla: str, at_ms: int, s: float | None, **columns: Any) -> dict[str, Any]:
    """The result of a check that measured *s* seconds."""
    named = {"sla": sla, "subject": SLAS[sla]["subject"], "measure": SLAS[sla].get("measure", "staleness")}
    measured = {"observed_ms": None if s is None else 1_000.0 * s, "verdict": "pass" if (s or 0) < 60 else "error"}
    limits = {"error_after_ms": 60_000.0, "checked_at": at_ms, "run_id": f"{at_ms} {columns}"}
    return {"topology": "flights", **named, **measured, **limits, **columns}


# 1 s to 17 s and 30 s from 10:00 on, 18 s and 19 s from 12:00 on.
BOARD = [check("board", SUNDAY + 10 * HOUR + s * MINUTE, s) for s in (*range(1, 18), 30)]
BOARD += [check("board", SUNDAY + 12 * HOUR + s * MINUTE, s) for s in (18, 19)]
DO_NOT_COUNT = [
    check("board", SUNDAY, None, verdict="unknown"),
    check("board", SUNDAY, None, verdict="error"),
    check("board", SUNDAY, 45, verdict="unknown"),  # of fewer records than min_records
    check("board", SUNDAY, 300, excluded_because="maintenance"),
    check("board", SUNDAY, 300, excluded_because="past"),
    check("board", SUNDAY, 300, verdict="pass"),  # its source had nothing to send
    check("board", SUNDAY, 300, measure="latency_p99"),
    check("board", NOW - 168 * HOUR - 1, 300),
    check("board", NOW, 300),
]
# All the same, so that the first hour counts as the worst.
CHANGES = [check("changes", NOW - 168 * HOUR + n * HOUR, 4) for n in range(25)]
STATUS = [check("status", SUNDAY + n * MINUTE, 100) for n in range(20)]
LATE = [check("late", SUNDAY + n * MINUTE, 5) for n in range(19)] + [check("late", SUNDAY - 1, None)]


def hour(start_ms: int, bucket: int, n: int, p99_ms: float, max_ms: int, **columns: Any) -> dict[str, Any]:
    """The row of the rollup for an hour of carrier_delays with all records of one length."""
    row = {"topology": "flights", "scope": "operator", "operator": "carrier_delays", "grain": "hour", "n": n}
    row |= {"interval_start": start_ms, "interval_end": start_ms + HOUR, **columns}
    measured = {"p50_ms": p99_ms, "p99_ms": p99_ms, "min_ms": max_ms, "max_ms": max_ms}
    return {**row, **measured, "buckets": [{"bucket": bucket, "n": n}]}


# Bucket 432 stands for 1.02^431 · (1 − 0.02 / 2.02) = 5,039 ms, and bucket 502 for 20,154 ms.
DELAYS = [
    *(hour(SUNDAY + n * HOUR, 0, 10, 0.0, 0) for n in range(18)),
    hour(SUNDAY + 18 * HOUR, 432, 10_000, 5_000.0, 5_000),
    hour(SUNDAY + 19 * HOUR, 502, 10, 20_000.0, 20_000),
    hour(NOW - 168 * HOUR - HOUR // 2, 900, 10**6, 9e6, 9**9),  # the first half hour lies before the week
    hour(NOW - HOUR // 2, 900, 10**6, 9e6, 9**9),  # this hour has not ended
    hour(SUNDAY, 900, 10**6, 9e6, 9**9, grain="day"),
    hour(SUNDAY, 900, 10**6, 9e6, 9**9, scope="task"),
]

# board: of 20 values the median is the 10th, and the p99 the ⌈0.99 · 20⌉-th, the largest. 1.5 · 30 s is 45 s. Of the 18
# values of the hour from 10:00 the median is the 9th.
# status: 1.5 · 100 s is 150 s, and a group must count for longer than the limit.
# carrier_delays: of 10,190 records 180 took 0 ms and 10,000 took 5 s, as 5,039 ms in their bucket. The median
# has rank 5,094 from 0, the p99 rank 10,087. 1.5 · 5,039 ms is 7.6 s. The mean of the hours' p99 would be 1.26 s.
PROPOSAL = """\
board: staleness of flight_board
time                                       median  p99   max
7 days                                     10 s    30 s  30 s
worst hour, from 2026-03-01T10:00:00.000Z  9 s     30 s  30 s
Proposed limit: 1 min, which 0 of 20 checks would have broken.
In [flights.board], in place of warn_after and error_after:
error_after = "1 min"

changes: staleness of changes
time                                       median  p99  max
7 days                                     4 s     4 s  4 s
worst hour, from 2026-02-23T00:00:00.000Z  4 s     4 s  4 s
Proposed limit: 10 s, which 0 of 25 checks would have broken.
In [flights.changes], in place of warn_after:
warn_after = "10 s"

status: staleness of flight_status
time                                       median      p99         max
7 days                                     1 min 40 s  1 min 40 s  1 min 40 s
worst hour, from 2026-03-01T00:00:00.000Z  1 min 40 s  1 min 40 s  1 min 40 s
Proposed limit: 3 min, which 0 of 20 checks would have broken.
In [flights.status], in place of error_after and over:
error_after = "3 min"
over = "5 min"

late: watermark_lag of flight_events
19 checks with a measurement that counts in 7 days: a proposal needs at least 20.

in_time: latency_p99 of flight_board
0 checks with a measurement that counts in 7 days: a proposal needs at least 20.

flight_board: latency of its records
0 hours with a measurement that counts in 7 days: a proposal needs at least 20.
Its latency has an SLA already: in_time.

carrier_delays: latency of its records
time                                       median  p99     max
7 days                                     5.04 s  5.04 s  20 s
worst hour, from 2026-03-01T19:00:00.000Z  20 s    20 s    20 s
Proposed limit: 10 s, which 1 of 20 hours would have broken.
As a new table:
[flights.carrier_delays_in_time]
subject = "carrier_delays"
measure = "latency_p99"
over = "1 h"
error_after = "10 s"
owner = "tidemark"
"""


def write(home: Path, results: list[dict[str, Any]], hours: list[dict[str, Any]]) -> None:
    for table, of_table in {SLA_RESULTS: results, LATENCY_ROLLUP: hours}.items():
        replace_rows(of_table, table, Layout(home).report_table("flights", table.name), where="true")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suggest")
    write(folder, [*BOARD, *DO_NOT_COUNT, *CHANGES, *STATUS, *LATE], DELAYS)
    return folder


def proposed(home: Path) -> str:
    specs = parse({"flights": SLAS}, FLIGHTS, file="slas.toml")
    return "\n\n".join(map(str, suggest(Warehouse(home), FLIGHTS, specs, now_ms=NOW))) + "\n"


def test_slas_and_terminal_operators_get_a_limit_from_a_week(home: Path) -> None:
    assert proposed(home) == PROPOSAL


def test_the_proposed_lines_are_valid_slas(home: Path) -> None:
    text = proposed(home)
    new = tomllib.loads(text[text.index("[flights.carrier_delays_in_time]") :])
    pasted = {**SLAS["status"], **tomllib.loads('error_after = "3 min"\nover = "5 min"')}
    specs = parse({"flights": {**new["flights"], "status": pasted}}, FLIGHTS, file="slas.toml")
    assert [spec.name for spec in specs] == ["carrier_delays_in_time", "status"]


def test_nineteen_hours_of_an_operator_are_too_few(tmp_path: Path) -> None:
    write(tmp_path, [], DELAYS[1:])
    text = proposed(tmp_path)
    delays = text[text.index("carrier_delays: ") :]
    assert delays.splitlines()[1:] == [
        "19 hours with a measurement that counts in 7 days: a proposal needs at least 20."
    ]


def test_the_command_fails_without_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its SLAs are those of the project, and its week ends now."""
    options = _parser().parse_args(["--warehouse", str(tmp_path), "suggest", "slas", "flights"])
    assert options.run(options) == 1
    assert (
        "board_is_fresh: staleness of flight_board\n0 checks with a measurement that counts in 7 days: a proposal needs"
        in capsys.readouterr().out
    )

    now_ms = wall_clock_ms()
    checks = [check("board", now_ms - n * MINUTE, 5) | {"sla": "board_is_fresh"} for n in range(1, 21)]
    write(tmp_path, checks, [])
    assert options.run(options) == 0
    assert 'In [flights.board_is_fresh], in place of warn_after and error_after:\nerror_after = "10 s"' in (
        capsys.readouterr().out
    )
