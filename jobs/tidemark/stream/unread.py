"""What a driver was reading when it ended: the batch that Spark had planned and nobody decided.

A record that expands to more than fits into memory, or whatever else ends the JVM, leaves no error that names it. What
was planned lies in the checkpoint, and how far the stream had come in the journal.
"""

from __future__ import annotations

from pathlib import Path

from tidemark.semantics.progress import InputProgress, StreamProgress
from tidemark.spec.operators import Source
from tidemark.spec.topology import SubTopology
from tidemark.stream.checkpoint import newest_commit, plans
from tidemark.stream.intact import Offsets
from tidemark.stream.journal import Journal
from tidemark.stream.parts import Ranges


def unread(control: Path, sub: SubTopology) -> list[str]:
    """The topics, partitions and offsets of the batch of *sub* that was planned and not decided; none where all were.

    *control* is the control folder.
    """
    _, ranges = unread_ranges(control, sub)
    return [
        f"topic {topic!r}, partition {number}, offsets {start} until {end}"
        for topic, offsets in ranges.items()
        for number, (start, end) in offsets.items()
    ]


def unread_ranges(control: Path, sub: SubTopology) -> tuple[int, Ranges]:
    """The number of the newest planned batch of *sub* (-1: there is none), and what of it was not decided."""
    planned = plans(control / "checkpoint")
    if not planned or not (control / "journal").is_dir():
        return -1, {}
    (batch_id, ends) = max(planned.items())
    committed, _ = newest_commit(control / "checkpoint")
    newest = Journal(control / "journal", "data").newest()
    progress = StreamProgress.from_json(newest.notes["progress"]) if newest else StreamProgress()
    goes_on = newest is not None and not newest.notes["batch"].get("is_last", True)
    decided = progress.planned_id - goes_on  # of a batch in parts the rest is not
    if ends is None or batch_id <= max(decided, -1 if committed is None else committed):
        return batch_id, {}
    found: dict[str, Offsets] = {}
    for source in sub.operators:
        if not isinstance(source, Source) or source.topic is None:
            continue
        partitions = progress.inputs.get(source.name, InputProgress()).partitions
        starts = {number: part.until_offset for number, part in partitions.items()}
        offsets = {number: (starts.get(number, 0), end) for number, end in sorted(ends.get(source.topic, {}).items())}
        found[source.topic] = {number: (start, end) for number, (start, end) in offsets.items() if start < end}
    return batch_id, {topic: offsets for topic, offsets in found.items() if offsets}


def begun(control: Path, sub: SubTopology) -> str:
    """`unread` as part of a sentence; empty where nothing was."""
    places = unread(control, sub)
    return f"it had begun to read {'; '.join(places)}" if places else ""
