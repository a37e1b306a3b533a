"""Makes notes for readers of the log of a sink's table."""

from __future__ import annotations

import json

from tidemark.kernels.records.marks import USER_METADATA
from tidemark.model.kinds.sink import Sink
from tidemark.model.settings.intervals import iso
from tidemark.semantics.completeness import newest_complete
from tidemark.semantics.progress import StreamProgress


def progress_notes(sink: Sink, progress: StreamProgress) -> dict[str, str]:
    """Returns the user metadata of a commit of *sink*'s table.

    It is what `DESCRIBE HISTORY` shows: a JSON object with the watermark of the stream after the batch, and the newest
    complete interval (start/end). Both are ISO 8601 in UTC, and null before the first.
    """
    interval = newest_complete(progress.complete[sink.name]) if sink.name in progress.complete else None
    shown = {
        "watermark": None if progress.watermark_ms is None else iso(progress.watermark_ms),
        "complete": None if interval is None else "/".join(map(iso, interval)),
    }
    return {USER_METADATA: json.dumps(shown)}
