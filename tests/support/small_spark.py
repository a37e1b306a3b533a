"""Plans batches over topics and tables in the checkpoint of a stream, as Spark does, without Spark.

Topics lie in memory. `tests/unit/offset_logs` has the form of the files as Spark writes it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import polars as pl
import polars.selectors as cs
from deltalake import DeltaTable

from support.play import Play
from support.quiet_broker import Row, Silence
from tidemark.control.folder import Control, ListedSource
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.project.layout import Layout
from tidemark.semantics.progress import TopicPartition
from tidemark.stream.journal.checkpoint import NO_OFFSET, newest_commit, read_plan
from tidemark.stream.run import follow_file
from tidemark.stream.startup.source_list import ask_for_starts
from tidemark.testing.rows import rows_of_hop


class Record(NamedTuple):
    """A record of a topic: a number that no other has, its key and its time."""

    n: int
    id: str
    at_ms: int


class Topics(Silence):
    """A broker with the records of each partition in memory.

    `asked` has the answers about where sources begin that say so, by source and partition.
    """

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.numbers = range(partitions)
        self.logs: dict[str, list[list[Record]]] = {}
        self.asked: dict[str, list[dict[int, int]]] = {}

    def ends(self, topic: str) -> dict[int, int]:
        """Returns where each partition of *topic* ends."""
        return {number: len(records) for number, records in enumerate(self.logs[topic])}

    def offsets(self, source: Source, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
        ends = self.ends(source.topic or "")
        return {number: (0, ends[number]) for number in partitions}

    def starts(self, source: Source) -> dict[TopicPartition, int]:
        """Returns where *source* begins, as the client of a broker does."""
        starts, topic = self.ends(source.topic or ""), source.topic or ""
        if isinstance(from_ms := source.starting_offsets, int):
            for number, records in enumerate(self.logs[topic]):
                starts[number] = next((n for n, each in enumerate(records) if each.at_ms >= from_ms), starts[number])
        self.asked.setdefault(source.name, []).append(starts)
        return {TopicPartition(topic, number): offset for number, offset in starts.items()}


class Read(NamedTuple):
    """Offsets or versions of a source that a batch reads: from (inclusive) until (exclusive), by partition."""

    start: Mapping[int, int]
    end: Mapping[int, int]


class Driver:
    """A driver of the stream *sub* of *play*, from its lease to its death; *step* is called at each step of it.

    Its first batch is the one that the driver before it had planned and not committed, if there is one.
    """

    def __init__(self, play: Play, sub: str, topics: Topics, step: Callable[[], None]) -> None:
        self.play, self.sub, self.topics = play, play.topology.sub_topology(sub), topics
        self.stream = play.stream(sub)
        self.control = Control(self.stream.control)
        self.checkpoint = self.control.home / "checkpoint"
        try:
            self.epoch = self.control.acquire()
            follow_file(self.stream, self.control, self.epoch)
            ask_for_starts(self.control, self.sub, topics.starts)

            def check_lease() -> None:
                self.control.check_lease(self.epoch)
                step()

            play.broker = topics
            play.start(sub, reached=lambda name: step(), epoch=self.epoch, check_lease=check_lease)
        except BaseException:
            self.end()
            raise
        self._listed = {each.name: each for each in self.control.sources()}
        planned = max((int(path.name) for path in self._files("offsets")), default=-1)
        committed, _ = newest_commit(self.checkpoint)
        self.is_pending = planned >= 0 and planned != committed
        self.batch_id = planned + (not self.is_pending)

    def end(self) -> None:
        """Gives the lease back, as the end of a process does."""
        self.control.release()

    def batch(self, at_ms: int, running: Callable[[int, int, dict[str, Read]], None] = lambda *_: None) -> None:
        """Runs a batch, planned at *at_ms* unless it is planned already.

        *running* is called before the engine runs it: with its number, when it was planned, and what it reads.
        """
        if not self.is_pending:
            self._plan(at_ms)
        self.is_pending = True
        before, planned = self._lines(self.batch_id - 1), self._lines(self.batch_id)
        reads: dict[str, Read] = {}
        rows: list[Row] = []
        for number, source in enumerate(self.sub.sources, start=1):
            read = self._read(number, source, before, planned)
            if read is not None:
                reads[source.name] = read
                rows += self._rows(source, read)
        plan = read_plan(self.checkpoint, self.batch_id)
        running(self.batch_id, plan.at_ms, reads)
        self.play.process(
            self.batch_id,
            rows,
            at_ms=plan.at_ms,
            sub=self.sub.name,
            now_ms=at_ms,
            ends=plan.ends,
            versions=plan.versions,
        )
        self._write("commits", self.batch_id, 'v1\n{"nextBatchWatermarkMs":0}')
        self.batch_id += 1
        self.is_pending = False

    def _files(self, kind: str) -> list[Path]:
        folder = self.checkpoint / kind
        return [path for path in folder.iterdir() if path.name.isdecimal()] if folder.is_dir() else []

    def _lines(self, batch_id: int) -> list[str]:
        """Returns the lines of the ticks and the sources in a plan."""
        if batch_id < 0:
            return [NO_OFFSET] * (1 + len(self.sub.sources))
        return (self.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2:]

    def _write(self, kind: str, batch_id: int, text: str) -> None:
        # As Spark does: under another name first.
        folder = self.checkpoint / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".tmp").write_text(text)
        os.replace(folder / ".tmp", folder / str(batch_id))

    def _plan(self, at_ms: int) -> None:
        before = self._lines(self.batch_id - 1)
        assert len(before) == 1 + len(self.sub.sources)
        lines = ["v1", json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms}), str(self.batch_id)]
        for number, source in enumerate(self.sub.sources, start=1):
            self._initial(number, source)
            lines.append(self._end(source, before[number]))
        self._write("offsets", self.batch_id, "\n".join(lines))

    def _end(self, source: Reading, before: str) -> str:
        """Returns the line of *source* in a new plan."""
        if isinstance(source, Source) and source.topic:
            return json.dumps({source.topic: {str(n): end for n, end in self.topics.ends(source.topic).items()}})
        path = self._table(source)
        table, start = DeltaTable(str(path)), _version(before)
        if table.version() < start or (before == NO_OFFSET and not table.version()):
            return before
        offset = {"sourceVersion": 1, "reservoirId": str(table.metadata().id), "reservoirVersion": table.version() + 1}
        return json.dumps({**offset, "index": -1, "isStartingVersion": False})

    def _initial(self, number: int, source: Reading) -> dict[int, int]:
        """Returns where Spark begins with the topic *source*, which it notes before the first plan that has it."""
        if not isinstance(source, Source) or not source.topic:
            return {}
        path = self.checkpoint / "sources" / str(number) / "0"
        if not path.is_file():
            listed: ListedSource | None = self._listed.get(source.name)
            begin = dict.fromkeys(self.topics.numbers, 0)
            begin |= {partition: offset for _, partition, offset in (listed and listed.starts) or ()}
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / ".tmp").write_text(json.dumps({source.topic: begin}))
            os.replace(path.parent / ".tmp", path)
        (offsets,) = json.loads(path.read_text()).values()
        return {int(partition): offset for partition, offset in offsets.items()}

    def _read(self, number: int, source: Reading, before: Sequence[str], planned: Sequence[str]) -> Read | None:
        """Returns what the planned batch reads of *source*; None: it had not begun when the batch was planned."""
        if planned[number] == NO_OFFSET:
            return None
        if isinstance(source, Source) and source.topic:
            start = self._initial(number, source) if before[number] == NO_OFFSET else _offsets(before[number])
            return Read(start, _offsets(planned[number]))
        return Read({0: _version(before[number])}, {0: _version(planned[number])})

    def _table(self, source: Reading) -> Path:
        if isinstance(source, HopSource):
            return Layout(self.play.home).hop(self.play.topology.name, source.upstream, source.repartition)
        assert isinstance(source, Source)
        return self.play.home / (source.delta or "")

    def _rows(self, source: Reading, read: Read) -> list[Row]:
        if isinstance(source, Source) and source.topic:
            found: list[Row] = []
            for partition, end in read.end.items():
                first = read.start.get(partition, 0)
                records = self.topics.logs[source.topic][partition][first:end]
                found += [record_row(source.name, partition, first + n, each) for n, each in enumerate(records)]
            return found
        path = self._table(source)
        if isinstance(source, HopSource):
            files = appended(path, read.start[0], read.end[0])
            return [row for _, rows in files for row in rows_of_hop(source, rows).to_dicts()]
        found = []
        for number, (file, rows) in enumerate(appended(path, read.start[0], read.end[0])):
            written = {"at_ms": number, "file": file, "start": 0}
            for row in rows.with_columns(cs.datetime().dt.epoch("ms")).to_dicts():
                record = Record(row["n"], row["id"], row["event_time"])
                found.append({**record_row(source.name, 0, None, record), "key": None, "written": written})
        return found


def record_row(source: str, partition: int, offset: int | None, record: Record) -> Row:
    """Returns *record* as a reader has it."""
    return {
        "source": source, "partition": partition, "offset": offset, "key": b"k", "deleted": False,
        "timestamp_ms": record.at_ms, source: {"id": record.id, "n": record.n, "event_time": record.at_ms},
    }  # fmt: skip


def appended(path: Path, first: int, end: int) -> list[tuple[str, pl.DataFrame]]:
    """Returns the rows that the versions from *first* before *end* of the table at *path* added, by file."""
    found: list[tuple[str, pl.DataFrame]] = []
    for version in range(first, end):
        actions = map(json.loads, (path / "_delta_log" / f"{version:020d}.json").read_text().splitlines())
        for added in [each["add"] for each in actions if "add" in each]:
            if added["dataChange"]:
                found.append((added["path"], pl.read_parquet(path / unquote(added["path"]))))
    return found


def _offsets(line: str) -> dict[int, int]:
    (offsets,) = json.loads(line).values()
    return {int(partition): offset for partition, offset in offsets.items()}


def _version(line: str) -> int:
    return 0 if line == NO_OFFSET else int(json.loads(line)["reservoirVersion"])
