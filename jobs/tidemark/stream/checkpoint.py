"""What Spark's checkpoint of a stream says: up to where each batch reads, when it was planned, and which are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

Ends = Mapping[str, Mapping[int, int]]
"""Per topic and partition an offset, exclusive."""


@dataclass(frozen=True)
class Plan:
    """One batch before it is read: up to where Spark reads each topic, and when it was planned (epoch ms UTC).

    `versions` are, by the id of each Delta table, the ones before which it is read, whole; none while Spark still reads
    what the table had in it at the start. A batch that is run again has the same plan.
    """

    ends: Ends
    at_ms: int
    versions: Mapping[str, int] = field(default_factory=dict)


def planned(checkpoint: Path, batch_id: int) -> Plan:
    """The plan of batch *batch_id*, as Spark's *checkpoint* has it; raises ValueError if torn."""
    told, sources = _plan(checkpoint, batch_id)
    at_ms = json.loads(told).get("batchTimestampMs")
    if not isinstance(at_ms, int):
        msg = f"{checkpoint}/offsets/{batch_id}: Spark writes batchTimestampMs here, got {told!r}; restore the file"
        raise ValueError(msg)
    return Plan(_ends(sources), at_ms, _versions(sources))


def _plan(checkpoint: Path, batch_id: int) -> tuple[str, list[str]]:
    """What the plan of *batch_id* says of the batch, and of each source; raises ValueError if torn."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text()
    version, told, *sources = text.splitlines() if text.count("\n") > 1 else ["", ""]
    if version != "v1":
        msg = f"{checkpoint}/offsets/{batch_id}: a plan begins with v1 and has a line per source, got {text!r}"
        raise ValueError(msg)
    return told, sources


def _ends(sources: Iterable[str]) -> Ends:
    ends: dict[str, Mapping[int, int]] = {}
    for offsets in (json.loads(line) for line in sources if line != "-"):
        # A topic has an object of its partitions; other sources have numbers and texts.
        topics = {name: of for name, of in offsets.items() if isinstance(of, dict)} if isinstance(offsets, dict) else {}
        ends |= {topic: {int(number): end for number, end in of.items()} for topic, of in topics.items()}
    return ends


def _versions(sources: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for offset in (json.loads(line) for line in sources if line != "-"):
        if isinstance(offset, dict) and "reservoirVersion" in offset:
            version = -1 if offset.get("isStartingVersion") else offset["reservoirVersion"]
            table = offset["reservoirId"]
            found[table] = min(version, found.get(table, version))  # of two sources with one table the one behind
    return {table: version for table, version in found.items() if version >= 0}


def plans(checkpoint: Path) -> dict[int, Ends | None]:
    """The plan of each batch that *checkpoint* still has, oldest first; None for one that is torn.

    One that has fewer lines than one before is: a query has the same sources all its life.
    """
    found: dict[int, Ends | None] = {}
    most = 0
    for number in _numbers(checkpoint / "offsets"):
        with suppress(FileNotFoundError):  # a driver that lives forgets old ones
            lines = len((checkpoint / "offsets" / str(number)).read_text().splitlines())
            found[number] = None if lines < most else _ends_or_none(checkpoint, number)
            most = max(most, lines)
    return found


def newest_commit(checkpoint: Path) -> tuple[int | None, bool]:
    """The newest batch that Spark took for done, None before the first; and whether the file that says so is torn."""
    numbers = _numbers(checkpoint / "commits")
    if not numbers:
        return None, False
    version, *lines = (checkpoint / "commits" / str(numbers[-1])).read_text().splitlines() or [""]
    return numbers[-1], version != "v1" or not lines or not all(_is_json(line) for line in lines)


def _ends_or_none(checkpoint: Path, number: int) -> Ends | None:
    try:
        return _ends(_plan(checkpoint, number)[1])
    except ValueError:
        return None


def _numbers(folder: Path) -> list[int]:
    return sorted(int(file.name) for file in folder.glob("[0-9]*") if file.name.isdecimal())


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
