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
from tidemark.stream.journal import Journal


def unread(control: Path, sub: SubTopology) -> list[str]:
    """The topics, partitions and offsets of the batch of *sub* that was planned and not decided; none where all were.

    *control* is the control folder.
    """
    planned = plans(control / "checkpoint")
    if not planned or not (control / "journal").is_dir():
        return []
    (batch_id, ends) = max(planned.items())
    committed, _ = newest_commit(control / "checkpoint")
    newest = Journal(control / "journal", "data").newest()
    progress = StreamProgress.from_json(newest.notes["progress"]) if newest else StreamProgress()
    goes_on = newest is not None and not newest.notes["batch"].get("is_last", True)
    decided = progress.planned_id - goes_on  # of a batch in parts the rest is not
    if ends is None or batch_id <= max(decided, -1 if committed is None else committed):
        return []
    found = []
    for source in sub.operators:
        if not isinstance(source, Source) or source.topic is None:
            continue
        partitions = progress.inputs.get(source.name, InputProgress()).partitions
        for number, end in sorted(ends.get(source.topic, {}).items()):
            start = partitions[number].until_offset if number in partitions else 0
            if start < end:
                found.append(f"topic {source.topic!r}, partition {number}, offsets {start} until {end}")
    return found


def begun(control: Path, sub: SubTopology) -> str:
    """`unread` as part of a sentence; empty where nothing was."""
    places = unread(control, sub)
    return f"it had begun to read {'; '.join(places)}" if places else ""
