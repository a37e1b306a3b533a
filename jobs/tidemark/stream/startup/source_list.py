"""Lets a topology file add, remove, reorder and rename the sources of a stream.

Purpose: Tidemark knows a source by its name, but Spark's checkpoint knows it only by its number among the sources of
the query. So the control folder has the list of sources in the order of the checkpoint (`sources.json`).

How it works: a driver that starts compares the list with the topology file. If they differ, it makes a new checkpoint
for the sources of the file: sources that go on keep their offsets, new ones have none, and others are left out. The
checkpoint and the list are first written to one file, `checkpoint.next`, and then put in their places. If a driver is
killed in between, the next one finds this file and finishes that. Batches keep their numbers.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from tidemark.control.files import RESTORE, parsed
from tidemark.control.folder import SOURCE_CHANGES, SOURCES, Control, ListedSource, TopologyChange
from tidemark.errors import UnreadableFile
from tidemark.model.kinds.boundary import Reading
from tidemark.model.kinds.repartition import HopSource
from tidemark.model.kinds.source import Source
from tidemark.model.kinds.source_place import EARLIEST, RECORD_PLACES
from tidemark.model.project.connections import DEFAULT
from tidemark.model.settings.lengths import counted
from tidemark.model.topology import SubTopology
from tidemark.selection import index_by_name, present
from tidemark.semantics.progress import InputProgress, PartitionProgress, StreamProgress, TopicPartition
from tidemark.storage.location import durable, put_once, remove_folder
from tidemark.stream.journal.checkpoint import rearranged
from tidemark.stream.journal.entries import Entry, newest_entry

NEXT = "checkpoint.next"
SEVERAL, CLUSTER = "topics ", " of cluster "
"""Words of the text for what a source of several topics reads, as in "topics orders, returns of cluster eu"."""


class Fate(StrEnum):
    """What becomes of an operator when a driver starts with a changed topology file."""

    GOES_ON = "goes on"
    BEGINS = "begins"
    ENDS = "ends"
    NEEDS_CONSENT = "needs consent"
    """Its states have another meaning now. It begins without them if a person agrees."""
    REFUSED = "refused"


@dataclass(frozen=True)
class SourceChange:
    """What becomes of a source.

    Attributes:
        name: its name in the file, or in the list if the file does not have it any more.
        fate: what becomes of it.
        place: the topic, table, folder or hop that it reads now, as text; None if the file does not have the source.
        former: the source as the list has it; None if the list does not have it.
        waiting: how many of its records wait for other partitions. They are dropped; but a source that is renamed is
            refused because of them.
        again: the source that ends, and that has read what this one begins to read.
    """

    name: str
    fate: Fate
    place: str | None
    former: ListedSource | None
    waiting: int = 0
    again: str | None = None

    @property
    def goes_on(self) -> bool:
        """True if it keeps its progress."""
        return self.fate is Fate.GOES_ON

    @property
    def _former(self) -> ListedSource:
        assert self.former is not None
        return self.former

    @property
    def is_of_another_name(self) -> bool:
        """True if a source of another name has read the same before."""
        return self.former is not None and self.former.name != self.name and self.former.place == self.place

    @property
    def is_renamed(self) -> bool:
        """True if it goes on under another name."""
        return self.goes_on and self._former.name != self.name

    @property
    def has_other_topics(self) -> bool:
        """True if it goes on, and its list of topics has changed."""
        return self.goes_on and self.place != self._former.place

    @property
    def is_news(self) -> bool:
        """True if anything about the source has changed."""
        return not self.goes_on or self.is_renamed or self.has_other_topics

    @property
    def ways(self) -> tuple[str, ...]:
        """What a person can do if the source is refused, the best way first."""
        if self.waiting:
            return (f"restore the name {self._former.name} until none waits; without `max_drift` that takes one batch",)
        at, begin = f"below [operators.{self.name}]", 'starting_offsets = "earliest" (or "latest", or an instant)'
        if self.is_of_another_name:
            way = f'write was = "{self._former.name}" {at}, to go on under the new name'
            return way, f"write {begin} there, to read the {self.place} anew"
        left = f"what it has not read of the {self._former.place} is left out"
        return f"write {begin} {at}: it begins there, and {left}", "restore the previous file"

    @property
    def line(self) -> str:
        """The change in words."""
        if self.fate is Fate.REFUSED:
            return f"the source {self.name}: {self.why}"
        dropped = f"; {dropped_text(self.waiting)}" if self.waiting else ""
        return f"the source {self.name} {self.fate} {self.why}".rstrip() + dropped

    @property
    def why(self) -> str:
        """The words that follow the fate in `line`; empty if there are none."""
        match self.fate:
            case Fate.GOES_ON:
                where = f"where {self._former.name} was" if self.is_renamed else ""
                topics = f"and reads {self.place}" if self.has_other_topics else ""
                return f"{where} {topics}".strip()
            case Fate.BEGINS:
                return f"with {self.place}" + (f" again, which {self.again} has read" if self.again else "")
            case Fate.ENDS:
                return ""
            case Fate.REFUSED if self.waiting:
                n = counted(self.waiting, "record waits", "records wait")
                return f"{n} for other partitions under the name {self._former.name}"
            case Fate.REFUSED if self.is_of_another_name:
                return f"it reads {self.place}, which the source {self._former.name} has read"
            case Fate.REFUSED:
                return f"was {self._former.place}, is {self.place}"
            case Fate.NEEDS_CONSENT:
                raise AssertionError(self.name)  # a source keeps nothing that could mean something else
            case _:
                assert_never(self.fate)


def dropped_text(waiting: int) -> str:
    """Returns a text that says that so many *waiting* records are dropped."""
    return f"{counted(waiting, 'waiting record is', 'waiting records are')} dropped"


def input_text(source: Reading) -> str:
    """Returns what *source* reads, as text."""
    match source:
        case HopSource():
            return f"hop of {source.repartition} of {source.upstream}"
        case Source():
            cluster = "" if source.kafka == DEFAULT else f"{CLUSTER}{source.kafka}"
            if source.reads_several:
                # The order of a list changes nothing.
                return f"{SEVERAL}{', '.join(sorted(source.topics)) or source.topic}{cluster}"
            if source.elsewhere:
                return f"{RECORD_PLACES[source.elsewhere.kind].noun} {source.elsewhere.path}"
            return f"topic {source.topic}{cluster}"
        case _:
            assert_never(source)


def changes(listed: Sequence[ListedSource], sub: SubTopology) -> list[SourceChange]:
    """Returns what becomes of each source of *sub*, in its order, and then of each *listed* one that *sub* lacks."""
    by_name = index_by_name(listed)
    going_on = {o.name for o in sub.sources if o.name in by_name and _fate(o, by_name[o.name]) is Fate.GOES_ON}
    ending_by_place = {each.place: each for each in listed if each.name not in going_on}
    found: list[SourceChange] = []
    for source in sub.sources:
        was = source.was if isinstance(source, Source) else None
        former = by_name.get(source.name)
        # A source that goes on under its former name has not got another one.
        if was is not None and was in by_name and was not in going_on and source.name not in going_on:
            former = by_name[was]
        # What was read under another name would be read twice, unless the file says where to begin.
        ending, again = ending_by_place.get(input_text(source)), None
        if former is None and ending is not None:
            former, again = (None, ending.name) if _says_start(source) else (ending, None)
        found.append(SourceChange(source.name, _fate(source, former), input_text(source), former, again=again))
    kept = {change.former.name for change in found if change.former}
    return [*found, *(SourceChange(each.name, Fate.ENDS, None, each) for each in listed if each.name not in kept)]


def with_waiting(of_sources: Sequence[SourceChange], newest: Entry | None) -> list[SourceChange]:
    """Returns the changes *of_sources* with the number of waiting records that are dropped.

    A source with waiting records must not be renamed, and is refused. *newest* is the newest entry of the stream, if
    there is one.
    """
    found: list[SourceChange] = []
    for change in of_sources:
        gives_up = change.is_renamed or change.fate in {Fate.BEGINS, Fate.ENDS}
        waiting = _waiting(change.former, newest) if newest and change.former and gives_up else 0
        fate = Fate.REFUSED if waiting and change.is_renamed else change.fate
        found.append(replace(change, fate=fate, waiting=waiting))
    return found


def _waiting(former: ListedSource, newest: Entry) -> int:
    """Returns how many records of *former* wait; 0 if the source has begun anew since the *newest* entry."""
    if former.begins_behind(newest.batch_id):
        return 0
    return max(map(newest.notes.held, (former.name, *former.formerly)))


def _fate(source: Reading, former: ListedSource | None) -> Fate:
    if former is None:
        return Fate.BEGINS
    is_named = former.name == source.name or (isinstance(source, Source) and former.name == source.was)
    if is_named and (former.place == input_text(source) or _are_topics(source, former)):
        return Fate.GOES_ON
    # Offsets of one topic say nothing about another, so the file has to say where to begin.
    return Fate.BEGINS if _says_start(source) else Fate.REFUSED


def _are_topics(source: Reading, former: ListedSource) -> bool:
    """Returns True if *source* reads several topics of the same cluster as before, which keep their numbers."""
    if not isinstance(source, Source) or not source.reads_several:
        return False
    read_several = former.place.startswith(SEVERAL)
    if not read_several and (former.topic is None or not source.reads(former.topic)):
        return False
    return former.place.partition(CLUSTER)[2] == input_text(source).partition(CLUSTER)[2]


def _says_start(source: Reading) -> bool:
    """Returns True if the file says where *source* begins."""
    # The file cannot say it of a hop, which is read from its beginning.
    return not isinstance(source, Source) or source.starting_offsets is not None


def follow(
    control: Control, sub: SubTopology, reached: int, check_lease: Callable[[], None] = lambda: None
) -> list[SourceChange]:
    """Changes the checkpoint and the list to the sources of *sub*, none of which is refused.

    Args:
        control: the control folder.
        sub: the sub-topology.
        reached: the newest batch that was decided, or -1 if there is none.
        check_lease: raises an error once another driver has taken over.

    Returns:
        The changes; none at the first start.
    """
    listed = control.sources()
    found = changes(listed, sub)
    topics = {o.name: None if o.reads_several else o.topic for o in sub.outside_sources}
    now = [_listed(change, topics.get(change.name), reached, sub) for change in found if change.place is not None]
    if now == [replace(each, read_by=sub.behind(each.name)) for each in listed]:
        if now != listed:
            check_lease()
            control.keep_sources(now)
        return []
    if not listed:
        control.keep_sources([replace(each, after=-1) for each in now])
        return []
    # Source 0 of every query gives the ticks.
    numbers = {each.name: number for number, each in enumerate(listed, start=1)}
    sources, former = sub.sources, list[int | None]([0])
    for change in found:
        if change.place is not None:
            former.append(numbers[change.former.name] if change.goes_on and change.former else None)

    def reads(number: int, topic: str) -> bool:
        source = sources[number - 1] if number else None
        return not isinstance(source, Source) or not source.reads_several or source.reads(topic)

    told = with_waiting(found, newest_entry(control.home))
    news, content = [change for change in told if change.is_news], io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, file in rearranged(control.home / "checkpoint", former, reads).items():
            archive.writestr(f"checkpoint/{name}", file)
        archive.writestr(SOURCES, json.dumps([asdict(each) for each in now]))
        archive.writestr(SOURCE_CHANGES, json.dumps([asdict(each) for each in _to_record(control, sub, news, reached)]))
    put_once(control.home / NEXT, content.getvalue(), check=check_lease)
    settle(control, check_lease)
    return news


def _to_record(control: Control, sub: SubTopology, news: Sequence[SourceChange], reached: int) -> list[TopologyChange]:
    """Returns the changes that the batch after *reached* has to record.

    These are *news*, and the changes of earlier drivers that decided no batch.
    """
    waiting = [each for each in control.source_changes() if each.begins_behind(reached)]
    now: list[TopologyChange] = []
    for change in news:
        former = change.former if change.place is None else None
        read_by = former.read_by if former else sub.behind(change.name)
        begins = change.fate is Fate.BEGINS
        now.append(TopologyChange(name=change.name, after=reached, line=change.line, begins=begins, read_by=read_by))
    # Before its first batch a stream has no rows that could mean something else.
    return [*dict.fromkeys([*waiting, *now])] if reached >= 0 else []


def _listed(change: SourceChange, topic: str | None, reached: int, sub: SubTopology) -> ListedSource:
    assert change.place is not None
    read_by = sub.behind(change.name)
    if change.goes_on and change.former is not None:
        formerly = (change.former.name, *change.former.formerly) if change.is_renamed else change.former.formerly
        return replace(change.former, name=change.name, place=change.place, formerly=formerly, read_by=read_by)
    return ListedSource(name=change.name, place=change.place, topic=topic, after=reached, read_by=read_by)


def ask_for_starts(
    control: Control, sub: SubTopology, starts: Callable[[Source], Mapping[TopicPartition, int]]
) -> None:
    """Notes the offsets at which sources begin that have `starting_offsets` and no progress yet.

    *starts* asks the broker. The answer is kept in the list, so that a driver that is started again begins at the same
    offsets.
    """
    listed = control.sources()
    by_name = {source.name: source for source in sub.outside_sources if source.topic}
    told = {each.name for each in listed if each.told or (each.name in by_name and _has_to_ask(by_name[each.name]))}
    # Most streams have no such source, and their journal is not read for it.
    newest = newest_entry(control.home) if told & by_name.keys() else None
    reached, now = newest.batch_id if newest else -1, list[ListedSource]()
    for number, each in enumerate(listed, start=1):
        if each.name not in told & by_name.keys() or not each.begins_behind(reached):
            now.append(each)
            continue
        now.append(_with_starts(each, by_name[each.name], starts))
        if now[-1].told != each.told:
            # Spark keeps where the file told it to begin before.
            remove_folder(control.home / "checkpoint" / "sources" / str(number))
    if now != listed:
        control.keep_sources(now)


def _has_to_ask(source: Source) -> bool:
    """Returns True if only the broker knows the offsets at which *source* begins."""
    return source.starting_offsets not in {None, EARLIEST}


def _with_starts(
    listed: ListedSource, source: Source, starts: Callable[[Source], Mapping[TopicPartition, int]]
) -> ListedSource:
    """Returns *listed* with the offsets at which *source* begins; *starts* asks the broker for them."""
    if not _has_to_ask(source):
        return replace(listed, told=None, starts=None)
    told, found = source.starting_offsets, starts(source)
    kept = {TopicPartition(topic, partition): offset for topic, partition, offset in listed.starts or ()}
    if listed.told == str(told) and kept:
        # Spark wants an offset of each partition. One that was added since has only records that came since.
        found = {partition: kept.get(partition, 0) for partition in found}
    return replace(listed, told=str(told), starts=tuple((*partition, offset) for partition, offset in found.items()))


def settle(control: Control, check_lease: Callable[[], None] = lambda: None) -> None:
    """Puts the checkpoint and the list in `checkpoint.next` in their places, if there is such a file.

    Raises:
        UnreadableFile: the file is damaged.
    """
    path, checkpoint = control.home / NEXT, control.home / "checkpoint"
    for unfinished in control.home.glob("checkpoint.*.partial"):
        unfinished.unlink(missing_ok=True)
    if not path.is_file():
        return
    try:
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        now = [parsed(ListedSource, each) for each in json.loads(files.pop(SOURCES))]
        to_record = [parsed(TopologyChange, each) for each in json.loads(files.pop(SOURCE_CHANGES))]
    except (zipfile.BadZipFile, LookupError, ValueError, TypeError) as error:
        raise UnreadableFile(path, f"{type(error).__name__}: {error}", RESTORE) from error
    check_lease()
    remove_folder(checkpoint)
    written: list[Path] = []
    for name, content in files.items():
        file = control.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        written.append(file)
    durable(written)
    control.keep_source_changes(to_record)
    control.keep_sources(now)
    path.unlink()


def continued(was: StreamProgress, listed: Sequence[ListedSource], sub: SubTopology) -> StreamProgress:
    """Returns the progress *was* under the present names of the sources of *sub*, with those that have begun since.

    Sources that *sub* does not have are left out. *listed* are the sources in the order of the checkpoint.
    """
    inputs: dict[str, InputProgress] = {}
    by_name = index_by_name(listed)
    for source in sub.sources:
        progress, of_list = was.inputs.get(source.name), by_name.get(source.name)
        if of_list is not None and of_list.begins_behind(was.batch_id):
            progress = _begun(source, of_list) if isinstance(source, Source) else None
        elif isinstance(source, Source):
            # Until a start has followed the file, only the file has the former name.
            formerly = present([source.was]) if of_list is None else of_list.formerly
            known = (was.inputs[name] for name in (source.name, *formerly) if name in was.inputs)
            progress = next(known, None)
            if progress is not None and source.reads_several and of_list is not None and of_list.topic is not None:
                progress = _of_several(progress, of_list.topic)
            if progress is not None and progress.places:
                read = {n: part for n, part in progress.partitions.items() if source.reads(progress.places[n].topic)}
                progress = replace(progress, partitions=read) if read != progress.partitions else progress
        if progress is not None:
            inputs[source.name] = progress
    return was if inputs == was.inputs else replace(was, inputs=inputs)


def _of_several(progress: InputProgress, topic: str) -> InputProgress:
    """Returns the *progress* of a source that has read only *topic* so far, and reads several topics from now on."""
    if progress.places:
        return progress
    return replace(progress, places=tuple(TopicPartition(topic, number) for number in range(len(progress.partitions))))


def _begun(source: Source, listed: ListedSource) -> InputProgress | None:
    """Returns the progress of *source* before its first batch, or None if it begins with the earliest records."""
    if listed.starts is None:
        return None
    starts = {TopicPartition(topic, partition): offset for topic, partition, offset in listed.starts}
    numbers = {at: number if source.reads_several else at.partition for number, at in enumerate(starts)}
    return InputProgress(
        partitions={numbers[at]: PartitionProgress(until_offset=offset) for at, offset in starts.items()},
        places=tuple(starts) if source.reads_several else (),
    )
