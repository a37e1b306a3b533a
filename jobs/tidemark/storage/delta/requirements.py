"""Reads what a Delta table requires of its writers, and refuses what Tidemark does not know.

A writer that does not know a feature damages the table: it writes columns under names that are no longer theirs, or
takes a version that a catalog has given to another. So every path of Tidemark that writes opens its table by
`open_to_write`, and looks again when a commit has changed more than files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.clock import since_boot_s
from tidemark.errors import Contradiction
from tidemark.kernels.sql.constraints import Constraint, NotEvaluable
from tidemark.selection import outside, present, within
from tidemark.storage.delta.datasets import schema_of
from tidemark.storage.delta.snapshots import COMMIT, OF_CATALOGS, Snapshot, snapshot_of, versions_in_log
from tidemark.storage.delta.types import refuse_type_changes
from tidemark.storage.object_path import ObjectPath

FEATURES = frozenset({"appendOnly", "invariants", "checkConstraints", "timestampNtz"})
"""The writer features of tables that Tidemark writes to."""
BY_VERSION = {4: ("changeDataFeed", "generatedColumns"), 5: ("columnMapping",), 6: ("identityColumns",)}
"""The other features that a table requires by its writer version alone."""
NAMED = 7
"""The writer version from which a table names the features that it requires."""
REMOVABLE = frozenset(
    {
        "columnMapping",
        "coordinatedCommits-preview",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "materializePartitionColumns",
        "rowTracking",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that `DROP FEATURE` of Delta 4.4 removes from a table that is named by its path."""
PROTECTED = "checkpointProtection"
"""The feature that `DROP FEATURE` leaves behind until old versions are gone."""
APPEND_ONLY = "delta.appendOnly"
CHECK = "delta.constraints."
"""Prefix of the properties of a table that are its checks."""
OWN_CHECK = "tidemark_"
"""Prefix of the names of the checks of Tidemark's own tables, which delta-rs evaluates."""
CHARS = "__CHAR_VARCHAR_TYPE_STRING"
INVARIANT = "delta.invariants"
CHECKED, NOT_NULL = "constraint", "column"
"""Kinds of constraints that `ALTER TABLE` removes."""
COMMIT_OR_CHECKPOINT = re.compile(r"(\d{20})(?:\.json|\.checkpoint\..*(?:json|parquet))")
"""Files of a log with the actions of a version. Compacted commits repeat those of commits (`x.y.compacted.json`)."""
LOOK_S = 60.0
"""Time between two looks at tables in an object store."""


@dataclass(frozen=True)
class Refusal:
    """Why Tidemark does not write to a table (`seen`), and the `ways` to change that, each a clause for people."""

    seen: str
    ways: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.seen}; {'; or '.join(self.ways)}"


class Access(Enum):
    """How Tidemark writes to a table."""

    FILES = auto()
    """It writes the same rows into other files, or rows that delta-rs checks."""
    OWN_ROWS = auto()
    """It adds rows to a table of Tidemark's own, on all of which Tidemark's readers rely."""
    ROWS = auto()
    """A sink adds rows to those that are there."""
    REPLACES = auto()
    """A sink replaces rows."""


OF_SINKS = frozenset({Access.ROWS, Access.REPLACES})


class TableRefused(Contradiction):
    """Raised before a write to a table that requires what Tidemark does not know."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


@dataclass(frozen=True)
class Requirements:
    """What the newest version of the table at *path* requires of its writers.

    `features` are the required features that are not among FEATURES.
    """

    path: Path
    features: tuple[str, ...]
    properties: Mapping[str, str]
    schema: str = '{"fields": []}'
    """Its columns as Delta's JSON; none if only `protocol_and_metadata` can read the table."""

    @classmethod
    def of(cls, path: Path, table: DeltaTable | Snapshot) -> Requirements:
        """Returns the requirements of the opened *table* at *path*."""
        if isinstance(table, Snapshot):
            features = _unknown(table.writer_version, table.writer_features)
            return cls(path, features, table.properties, table.schema)
        protocol = table.protocol()
        features = _unknown(protocol.min_writer_version, protocol.writer_features or ())
        return cls(path, features, table.metadata().configuration, table.schema().to_json())

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """The conditions that its rows must meet, without the checks of Tidemark's own tables."""
        # Most writers do not ask for them.
        fields = json.loads(self.schema)["fields"]
        columns = tuple((field["name"], _type_of(field)) for field in fields)
        of_fields = chain.from_iterable(_of_field(field, columns) for field in fields)
        return (*_checks(self.properties, columns), *of_fields)

    def refusals(self, access: Access = Access.FILES) -> Iterator[Refusal]:
        """Yields why Tidemark does not write to the table by *access*."""
        if self.features:
            seen = f"{self.path}: Tidemark does not write to tables with {', '.join(self.features)}"
            yield Refusal(seen, tuple(self._ways()))
        if access is not Access.FILES:
            for constraint in self.constraints:
                yield from self._of_constraint(constraint, access)
        if access is Access.REPLACES and self.properties.get(APPEND_ONLY) == "true":
            seen = f"{self.path}: {APPEND_ONLY} forbids to replace rows, and a sink with current rows does that"
            off = f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')"
            yield Refusal(seen, (off, self._another_name()))

    def refuse(self, access: Access = Access.FILES) -> None:
        """Raises TableRefused with the first of the refusals, if there is one."""
        for refusal in self.refusals(access):
            raise TableRefused(refusal)

    def _of_constraint(self, constraint: Constraint, access: Access) -> Iterator[Refusal]:
        """Yields why Tidemark does not write rows by *access* to a table with *constraint*."""
        if access not in OF_SINKS:
            why = f"{self.path}: only tables of sinks may have constraints, and this one has the {constraint}"
        else:
            try:
                _ = constraint.condition
            except NotEvaluable as error:
                why = f"{self.path}: the {constraint} cannot be evaluated: {error}"
            else:
                return
        alter = f"ALTER TABLE delta.`{self.path}`"
        drops = {
            CHECKED: f"{alter} DROP CONSTRAINT {constraint.name}",
            NOT_NULL: f"{alter} ALTER COLUMN {constraint.name} DROP NOT NULL",
        }
        yield Refusal(why, tuple(present((drops.get(constraint.kind), self._another_name()))))

    def _ways(self) -> Iterator[str]:
        lasting = outside(self.features, REMOVABLE | OF_CATALOGS | {PROTECTED})
        if lasting:
            yield f"Delta cannot remove {', '.join(lasting)}: {self._another_name()}"
            return
        # Others depend on domainMetadata, and dropping others makes PROTECTED.
        last = ["domainMetadata", PROTECTED]
        drops = [self._drop(feature) for feature in (*outside(self.features, last), *within(last, self.features))]
        yield "remove it in Spark: " + "; ".join(drops)
        yield self._another_name()

    def _drop(self, feature: str) -> str:
        if feature in OF_CATALOGS:
            return f"ALTER TABLE CATALOG.SCHEMA.TABLE DROP FEATURE {feature}"
        alter = f"ALTER TABLE delta.`{self.path}`"
        if feature != PROTECTED:
            return f"{alter} DROP FEATURE {feature}"
        forget = "SET TBLPROPERTIES ('delta.dropFeatureTruncateHistory.retentionDuration' = 'interval 0 seconds')"
        return f"{alter} {forget}; {alter} DROP FEATURE {feature} TRUNCATE HISTORY"

    def _another_name(self) -> str:
        return (
            f"write to a new table, such as {self.path.name}_2: give the sink another `table` in the topology file; "
            "for a table that is no sink's, give the topology another `name`"
        )


def open_to_write(path: Path, access: Access = Access.FILES) -> DeltaTable | Snapshot:
    """Opens the newest version of the table at *path*, to write to it by *access*.

    Raises:
        TableNotFoundError: there is no table.
        TableRefused: the table requires what Tidemark does not know.
    """
    try:
        table = snapshot_of(path) or DeltaTable(str(path))
    except TableNotFoundError:
        raise
    except DeltaError:
        # delta-rs does not open a table with features that it does not know, and names no remedy.
        protocol, metadata = protocol_and_metadata(path)
        features = _unknown(protocol["minWriterVersion"], protocol.get("writerFeatures") or ())
        Requirements(path, features, dict(metadata.get("configuration") or {})).refuse()
        raise
    Requirements.of(path, table).refuse(access)
    return table


class TableWatch:
    """Notices when tables begin to require what Tidemark does not know.

    A driver looks before it decides a batch, because it must be able to write what it has decided. A look reads each
    commit since the last look. In an object store, where that is a request, the tables are opened every LOOK_S instead.


    Args:
        tables: how each table is written, by its path. There may be no table at a path yet. Tables of sinks are opened
            at once.
        declared: by the path of a sink's table, the columns of the rows that the sink writes.

    Raises:
        TableRefused: there is such a table.
        TypesChanged: a column of a sink's table has another type than the sink's rows.
    """

    def __init__(self, tables: Mapping[Path, Access], declared: Mapping[Path, pa.Schema]) -> None:
        self._tables, self._declared = tables, declared
        self._seen = {
            path: -1 if isinstance(path, ObjectPath) else max(versions_in_log(path), default=-1) for path in tables
        }
        self._looked_s = since_boot_s()
        self._constraints: dict[Path, tuple[Constraint, ...]] = {}
        for path, access in tables.items():
            if access in OF_SINKS:
                self._open(path)

    def look(self) -> None:
        """Raises TableRefused or TypesChanged if there is such a table."""
        is_due = since_boot_s() - self._looked_s >= LOOK_S
        if is_due:
            self._looked_s = since_boot_s()
        for path in self._seen:
            self._look_at(path, is_due=is_due)

    def constraints(self, path: Path) -> tuple[Constraint, ...]:
        """Returns the constraints of a sink's table at *path*, as of the last look."""
        return self._constraints.get(path, ())

    def constraints_now(self, path: Path) -> tuple[Constraint, ...]:
        """Returns the constraints of a sink's table at *path* after another look at it."""
        self._look_at(path, is_due=False)
        return self.constraints(path)

    def _look_at(self, path: Path, *, is_due: bool) -> None:
        seen = self._seen[path]
        newest, is_anew = (seen, is_due) if isinstance(path, ObjectPath) else _commits_after(path, seen)
        if is_anew:
            self._open(path)
        self._seen[path] = newest

    def _open(self, path: Path) -> None:
        with suppress(TableNotFoundError):
            table, access = open_to_write(path, self._tables[path]), self._tables[path]
            if access in OF_SINKS:
                refuse_type_changes(path.name, schema_of(table).to_json(), self._declared[path])
                self._constraints[path] = Requirements.of(path, table).constraints


def _commits_after(path: Path, version: int) -> tuple[int, bool]:
    """Returns the newest version of the table at *path*, and whether one after *version* may change more than files."""
    is_anew = False
    while True:
        try:
            content = (path / "_delta_log" / f"{version + 1:020d}.json").read_bytes()
        except FileNotFoundError:
            return version, is_anew
        is_anew |= b'"metaData"' in content or b'"protocol"' in content
        version += 1


def _type_of(field: Mapping[str, Any]) -> str:
    """Returns Delta's type of a column; Spark compares `char(n)` as no other text."""
    kind, more = field["type"], field.get("metadata") or {}
    if CHARS in more:
        return str(more[CHARS])
    return kind if isinstance(kind, str) else json.dumps(kind)


def _checks(properties: Mapping[str, str], columns: tuple[tuple[str, str], ...]) -> Iterator[Constraint]:
    for name, text in properties.items():
        own_name = name.removeprefix(CHECK)
        if name.startswith(CHECK) and not own_name.startswith(OWN_CHECK):
            yield Constraint(CHECKED, own_name, text, columns)


def _of_field(
    field: Mapping[str, Any], columns: tuple[tuple[str, str], ...], outer: tuple[str, ...] = ()
) -> Iterator[Constraint]:
    """Yields the constraints of *field*, which is inside the fields *outer*, and of the fields inside it.

    Tidemark cannot evaluate a condition on a field inside another one.
    """
    names = (*outer, field["name"])
    name = ".".join(names)
    if not field.get("nullable", True):
        yield Constraint(NOT_NULL, name, _is_not_null(names), columns)
    if invariant := (field.get("metadata") or {}).get(INVARIANT):
        yield Constraint("invariant of", name, json.loads(invariant)["expression"]["expression"], columns)
    inner = [field["type"]]
    while inner:
        kind = inner.pop()
        if isinstance(kind, Mapping):
            for part in kind.get("fields", ()):
                yield from _of_field(part, columns, names)
            if not kind.get("containsNull", True) or not kind.get("valueContainsNull", True):
                yield Constraint(NOT_NULL, f"{name}.element", _is_not_null((*names, "element")), columns)
            inner += [kind[part] for part in ("elementType", "valueType") if part in kind]


def _is_not_null(names: Iterable[str]) -> str:
    return f"{'.'.join(f'`{name}`' for name in names)} IS NOT NULL"


def _unknown(writer_version: int, writer_features: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    if writer_version < NAMED:
        required = {name for version, names in BY_VERSION.items() if version <= writer_version for name in names}
    else:
        required = {*writer_features}
    if writer_version > NAMED:
        required.add(f"writer version {writer_version}")
    return tuple(sorted(required - FEATURES))


def protocol_and_metadata(path: Path, *, until: int | None = None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Returns the newest actions `protocol` and `metaData` in the log of the table at *path*.

    Unlike delta-rs this reads tables with any feature. With *until* only versions up to this one count. Raises OSError,
    ValueError or KeyError if the log does not have both actions.
    """
    found: dict[str, Mapping[str, Any]] = {}
    commits: list[tuple[int, Path]] = []
    checkpoints: list[tuple[int, Path]] = []
    for file in (path / "_delta_log").iterdir():
        match = COMMIT_OR_CHECKPOINT.fullmatch(file.name)
        if match and (until is None or int(match[1]) <= until):
            (commits if COMMIT.fullmatch(file.name) else checkpoints).append((int(match[1]), file))
    base = max((version for version, _ in checkpoints), default=-1)
    later_commits = sorted(((version, file) for version, file in commits if version > base), reverse=True)
    parts_of_checkpoint = [(version, file) for version, file in checkpoints if version == base]
    for _, file in [*later_commits, *parts_of_checkpoint]:
        actions = _of_parquet(file) if file.suffix == ".parquet" else _of_json(file)
        for action in reversed(actions):
            for kind in within(("protocol", "metaData"), action):
                if action[kind] is not None:
                    found.setdefault(kind, action[kind])
        if len(found) == 2:
            break
    return found["protocol"], found["metaData"]


def _of_json(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def _of_parquet(file: Path) -> list[dict[str, Any]]:
    content = pq.ParquetFile(pa.BufferReader(file.read_bytes()))
    rows: list[dict[str, Any]] = content.read(within(("protocol", "metaData"), content.schema_arrow.names)).to_pylist()
    return rows
