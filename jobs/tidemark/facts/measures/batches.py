"""Finds the batches that a check is about.

The table `batches` grows with each batch, and a check needs only the newest ones. So queries get the first batch of
each sub-topology as a constant, and DuckDB opens no files of earlier batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.facts.answers import Tables
from tidemark.model.settings.intervals import is_text
from tidemark.model.tables.catalog import BATCHES, COUNTED
from tidemark.model.topology import Topology

DAY_MS = 86_400_000
LATER = """
    later AS (
        SELECT sub_topology, min(batch_id) AS batch_id FROM finished WHERE finished_at > make_timestamptz($2 * 1000)
        GROUP BY sub_topology
    )
"""
"""Selects, by sub-topology, the first batch finished after $2."""
BEFORE_LATER = "LEFT JOIN later AS l USING (sub_topology) WHERE (l.batch_id IS NULL OR t.batch_id < l.batch_id)"
FIRST = f"""
    WITH finished AS ({{finished}}), {LATER}
    SELECT sub_topology, coalesce(min(t.batch_id) FILTER (t.finished_at >= make_timestamptz($3 * 1000)),
                                  max(t.batch_id)) AS batch_id,
           max(t.batch_id) FILTER (t.read_n > 0) AS read_batch_id
    FROM finished AS t {BEFORE_LATER} GROUP BY sub_topology
"""
"""Selects, by sub-topology, the first batch finished from $3 on, or else the newest one before that.

`read_batch_id` is the newest batch that read records.
"""


@dataclass(frozen=True)
class KnownBatches:
    """The batches of `topology` that a query reads, with the first of each sub-topology in `first`."""

    topology: str
    first: Mapping[str, int]

    @property
    def sql(self) -> str:
        """The WITH tables `finished` and `later` of a query, in which $1 is the topology and $2 the instant.

        `finished` has the batches from `first` on. Those that come before the batch of their sub-topology in `later`
        had finished at the instant.
        """
        selects = [
            _finished(f"batch_id >= {batch_id} AND {is_text('sub_topology', sub)}")
            for sub, batch_id in self.first.items()
        ]
        # A UNION needs at least one SELECT.
        return f"finished AS ({' UNION ALL '.join(selects or [_finished('false')])}), {LATER}"

    def outcomes(self, topology: Topology) -> str:
        """Returns a SELECT of the rows of `operator_batches` that count updates in these batches.

        For a sub-topology of *topology* without batches here, rows are read from the beginning.
        """
        first = {sub.name: 0 for sub in topology.sub_topologies} | dict(self.first)
        # A row that is only about tasks, or a skip rate, counts no updates.
        counts = " OR ".join(f"{column} IS DISTINCT FROM 0" for column in COUNTED)
        of = f"SELECT * FROM operator_batches WHERE {is_text('topology', self.topology)} AND ({counts}) AND batch_id >="
        return " UNION ALL ".join(
            f"{of} {batch_id} AND {is_text('sub_topology', sub)}" for sub, batch_id in first.items()
        )


def tables_of_batches(tables: Tables, topology: str) -> list[Path]:
    """Returns the tables `batches` of the sub-topologies of *topology*."""
    return [path for path in tables.tables.get(BATCHES.name, ()) if path.parent.parent.name == topology]


def known_batches(tables: Tables, topology: str, *, at_ms: int, since_ms: int) -> KnownBatches:
    """Returns the batches that finished between *since_ms* and *at_ms*, both epoch ms.

    If no batch did, the newest batch before *since_ms* is the first. The newest batch that read records is always
    among them, since batches without records have no outcomes.
    """
    near = f"finished_at >= make_timestamptz({(since_ms - DAY_MS) * 1000})"
    first: dict[str, int] = {}
    subs = {path.parent.name for path in tables_of_batches(tables, topology)}
    for row in tables.ask(FIRST.format(finished=_finished(near)), [topology, at_ms, since_ms]).objects:
        if row["read_batch_id"] is None:
            subs.add(row["sub_topology"])
        else:
            first[row["sub_topology"]] = min(row["batch_id"], row["read_batch_id"])
    # A sub-topology that read no record for a day has few batches, so all of them are read.
    return KnownBatches(topology, first | _first_of_all(tables, topology, subs - first.keys(), at_ms, since_ms))


def _first_of_all(tables: Tables, topology: str, subs: Iterable[str], at_ms: int, since_ms: int) -> dict[str, int]:
    """Returns the first batch of each of *subs* that `known_batches` looks for, from all rows; 0 without a batch."""
    first = dict.fromkeys(sorted(subs), 0)
    for sub in first:
        finished = _finished(is_text("sub_topology", sub))
        for row in tables.ask(FIRST.format(finished=finished), [topology, at_ms, since_ms]).objects:
            first[sub] = min(row["batch_id"], row["batch_id"] if row["read_batch_id"] is None else row["read_batch_id"])
    return first


def _finished(where: str) -> str:
    return (
        f"SELECT sub_topology, batch_id, finished_at, records_in AS read_n FROM batches WHERE topology = $1 AND {where}"
    )
