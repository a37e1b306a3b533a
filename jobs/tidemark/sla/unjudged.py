"""Keeps what a check has found until great-expectations has judged it.

The checker stores checks without great-expectations, whose import takes longer than a hundred checks. What its suites
judge waits in a file for each check, in the control folder of the topology's reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.model.project.layout import Layout
from tidemark.model.sla_event_rows import row_of
from tidemark.model.sla_events import SlaResult
from tidemark.storage.location import replace

if TYPE_CHECKING:  # processes that wait for another one look here, and need no more
    from tidemark.facts.answers import Row
    from tidemark.sla.check_steps import Measured
    from tidemark.sla.measures.status import Status

COLUMNS = ("sla", "verdict", "observed_ms", "warn_after_ms", "error_after_ms")
"""The columns of `sla_results` that the suite `sla_status` judges."""

MOST = 300
"""Those of two days, if one is stored every ten minutes."""


@dataclass(frozen=True, kw_only=True)
class FoundRows:
    """What the check of *run_id* for *at_ms* (epoch ms) found.

    Attributes:
        at_ms: its instant.
        run_id: of the check.
        promised: number of SLAs that it had to judge.
        slas: a row for each SLA: COLUMNS, and whether it is `excused` and was `measured`.
        accounts: rows of `sla_facts.accounts`.
    """

    at_ms: int
    run_id: str
    promised: int
    slas: Sequence[Row]
    accounts: Sequence[Row]


def found_rows(measured: Measured, judged: Sequence[Status], results: Sequence[SlaResult]) -> FoundRows:
    """Returns what great-expectations judges of a check; *results* are in the order of what was *judged*."""
    slas = []
    for status, result in zip(judged, results, strict=True):
        row = row_of(result)
        told = {name: row[name] for name in COLUMNS}
        slas.append({**told, "excused": status.is_excused, "measured": status.is_measured})
    return FoundRows(
        at_ms=measured.time.at_ms,
        run_id=measured.time.run_id,
        promised=len(measured.specs),
        slas=slas,
        accounts=measured.accounts,
    )


def keep(layout: Layout, topology: str, rows: FoundRows) -> None:
    """Stores what a check found, until it is `judged`.

    Where no suites run, the newest MOST checks are kept.
    """
    folder = _folder(layout, topology)
    folder.mkdir(parents=True, exist_ok=True)
    replace(folder / f"{rows.at_ms}.json", json.dumps(asdict(rows)))
    for path in _files(folder)[:-MOST]:
        judged(path)


def unjudged(layout: Layout, topology: str) -> Iterator[tuple[Path, FoundRows]]:
    """Yields the files of checks that wait, the oldest first, with what the checks found."""
    for path in _files(_folder(layout, topology)):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        yield path, FoundRows(**found)


def waiting_topologies(layout: Layout) -> list[str]:
    """Returns the topologies with checks that wait."""
    files = layout.warehouse.glob(str(_folder(layout, "*").relative_to(layout.warehouse) / "*.json"))
    return sorted({path.parent.parent.parent.name for path in files})


def judged(path: Path) -> None:
    """Removes the file of a check that was judged."""
    path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """Returns the files of checks, the oldest first."""
    return sorted(folder.glob("*.json"), key=lambda path: int(path.stem))


def _folder(layout: Layout, topology: str) -> Path:
    return layout.report_control(topology) / "unjudged"
