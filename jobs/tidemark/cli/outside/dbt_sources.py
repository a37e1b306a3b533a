"""Writes the staleness SLAs of topologies as freshness of dbt's sources."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from tidemark.errors import InvalidSpec
from tidemark.escaping import one_line
from tidemark.model.settings.toml_keys import length
from tidemark.model.sla_spec import Measure, ResultPlace, SlaSpec
from tidemark.model.tables.catalog import CHANGES
from tidemark.semantics.sla import Sla

PERIODS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"))
"""dbt's units of freshness and their ms, the longest first.

Source: docs.getdbt.com, resource property `freshness`.
"""


def sources(slas: Iterable[tuple[str, Sequence[SlaSpec]]], *, file: str, schema: str) -> str:
    """Returns the text of dbt's `sources.yml`.

    Each topology with staleness SLAs is a source, whose tables are the names that `tidemark publish` gives. The
    freshness of a table is the age of its newest record time. Comments name the SLAs that dbt cannot express, each with
    key and remedy.

    Args:
        slas: name and valid SLAs of each topology.
        file: the file of the SLAs, for messages.
        schema: the schema that has the tables for dbt.
    """
    lines: list[str] = []
    comments: list[str] = []
    for topology, specs in slas:
        tables: dict[str, list[str]] = {}
        for spec in specs:
            if spec.measure is not Measure.STALENESS:
                continue
            try:
                _refuse(spec, tables, f"{topology}.{spec.name}", file)
                tables[spec.subject] = [*_table(spec, topology, file)]
            except InvalidSpec as error:
                comments.append(f"# Left out: {one_line(str(error))}")
        if tables:
            lines += [f"  - name: {_text(topology)}", f"    schema: {_text(schema)}", "    tables:"]
            lines += [line for table in tables.values() for line in table]
    return "\n".join([*comments, "version: 2", "sources:" if lines else "sources: []", *lines])


def _refuse(spec: SlaSpec, tables: Iterable[str], at: str, file: str) -> None:
    """Refuses an SLA with keys that dbt has no word for."""
    alone = "write an SLA without this key for dbt"
    if spec.by:
        raise InvalidSpec.at(file, f"{at}.by", "is set, but dbt judges a table as a whole", alone)
    if spec.calendar:
        raise InvalidSpec.at(file, f"{at}.calendar", "is set, but dbt judges at every hour", alone)
    if spec.place is not ResultPlace.VIEW:
        raise InvalidSpec.at(file, f"{at}.place", f"is {spec.place.value!r}, but dbt reads the view", alone)
    if spec.subject in tables:
        problem = f"is {spec.subject!r}, which has the freshness of another SLA in dbt"
        raise InvalidSpec.at(file, f"{at}.subject", problem, "write one SLA for the staleness of a table")


def _table(spec: SlaSpec, topology: str, file: str) -> Iterator[str]:
    """Yields the lines of the table of *spec*."""
    at = f"{topology}.{spec.name}"
    description = f"SLA {at} of {spec.owner}"
    if spec.ignore_when_idle:
        description += "; Tidemark passes it while its sources are idle, dbt does not"
    if spec.maintenance_windows:
        description += "; Tidemark opens no incident in maintenance windows, dbt knows none"
    yield f"      - name: {_text(spec.subject)}"
    yield f"        description: {_text(description)}"
    yield "        config:"
    yield "          loaded_at_field: timestamp"
    yield "          freshness:"
    limits = spec.limits
    assert isinstance(limits, Sla)  # staleness has lengths of time
    for key, limit_ms in (("warn_after", limits.warn_after_ms), ("error_after", limits.error_after_ms)):
        # Without a limit of its own a table would have that of a project's default.
        yield f"            {key}: {'null' if limit_ms is None else _period(limit_ms, f'{at}.{key}', file)}"
    if spec.subject == CHANGES.name:
        # Its view has the changes of all topologies.
        condition = f"topology = '{topology}'"
        yield f"            filter: {_text(condition)}"


def _period(limit_ms: float, at: str, file: str) -> str:
    """Returns dbt's count and period of a length of time.

    Raises InvalidSpec if it is not a number of whole minutes.
    """
    for size_ms, period in PERIODS:
        if limit_ms and limit_ms % size_ms == 0:
            return f"{{count: {int(limit_ms // size_ms)}, period: {period}}}"
    problem = f"is {length(int(limit_ms))}, but dbt counts whole minutes, at least 1"
    raise InvalidSpec.at(file, at, problem, 'write a number of minutes, such as "1 min"')


def _text(text: str) -> str:
    """Returns *text* as YAML; its double-quoted strings include those of JSON."""
    return json.dumps(text)
