"""Reads and writes the incidents of a topology, through delta-rs (ring 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow.compute as pc

from tidemark.delta import again_after_others
from tidemark.report.incident_facts import acknowledged, changes, looks_back_ms
from tidemark.report.report_tables import lies_in, opened, replace_in, rows_in
from tidemark.spec.intervals import Interval, is_text, utc
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.tables import INCIDENTS, SLA_RESULTS

EVERY = pc.scalar(True)  # noqa: FBT003 - a row filter that all pass


def quiet(spec: SlaSpec, at_ms: int, *, is_past: bool) -> str | None:
    """Why no incident follows from a check of *spec* for *at_ms*; None: one may."""
    if is_past:
        return "past"
    return "maintenance" if spec.is_quiet(at_ms) else None


def is_checked_after(layout: Layout, topology: str, at_ms: int, run_id: str) -> bool:
    """Whether another run than *run_id* has checked *topology* for an instant after *at_ms*."""
    results = opened(SLA_RESULTS, layout.report_table(topology, SLA_RESULTS.name))
    later = (pc.field("checked_at") > utc(at_ms)) & (pc.field("run_id") != run_id)
    return rows_in(results, later).height > 0


def follow_up(layout: Layout, topology: str, specs: Sequence[SlaSpec], *, at_ms: int) -> list[dict[str, Any]]:
    """Write the changes of incidents that follow from the checks up to *at_ms*; which those are. Again: none."""
    results = opened(SLA_RESULTS, layout.report_table(topology, SLA_RESULTS.name))
    recent = lies_in("checked_at", Interval(at_ms - looks_back_ms(specs), at_ms + 1))
    checks = _in_ms(rows_in(results, recent))

    def follow() -> list[dict[str, Any]]:
        stored = opened(INCIDENTS, layout.report_table(topology, INCIDENTS.name))
        found = changes(specs, checks, _in_ms(rows_in(stored, EVERY)), at_ms=at_ms)
        if found:
            replace_in(stored, found, INCIDENTS, where=_are_those(found))
        return found

    return again_after_others(follow)


def acknowledge(layout: Layout, topology: str, incident: str, *, by: str, note: str, at_ms: int) -> bool:
    """Write down that *by* looks after *incident*; whether nobody had done so before. Raises InvalidArgument."""

    def write() -> bool:
        stored = opened(INCIDENTS, layout.report_table(topology, INCIDENTS.name))
        row = acknowledged(_in_ms(rows_in(stored, EVERY)), incident, by=by, note=note, at_ms=at_ms)
        if row is not None:
            replace_in(stored, [row], INCIDENTS, where=_are_those([row]))
        return row is not None

    return again_after_others(write)


def _are_those(rows: Sequence[dict[str, Any]]) -> str:
    return " OR ".join(
        f"({is_text('incident', row['incident'])} AND {is_text('change', row['change'])})" for row in rows
    )


def _in_ms(rows: pl.DataFrame) -> list[dict[str, Any]]:
    return rows.with_columns(cs.datetime().dt.epoch("ms")).to_dicts()
