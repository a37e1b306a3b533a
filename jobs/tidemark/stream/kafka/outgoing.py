"""Finds in a journal entry the rows that a sink sends to its topic, the ids of the records, and who sends them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.sink import Sink
from tidemark.storage.files import Files, Rows
from tidemark.stream.journal.entries import MANY, Entry


@dataclass(frozen=True, kw_only=True)
class OutgoingRows:
    """The *rows* that *sink* sends to its topic in one batch.

    Args:
        sink: a sink with a topic.
        rows: at least one row, in the order of their ids.
        batch_id: the batch, which is in the ids.
        epoch: the lease number of the driver that decided the batch, which is in the ids.
        first: the number in the id of the first row. Each row has two numbers, one for its first try and one for its
            second. So ids depend on the entry alone, and are the same when the batch is sent again.
        decided_at_ms: decision time of the batch, epoch ms, which is in the ids of its span.
    """

    sink: Sink
    rows: Rows
    batch_id: int
    epoch: int
    first: int
    decided_at_ms: int = 0

    @classmethod
    def of(cls, sink: Sink, entry: Entry, operators: Iterable[Operator]) -> OutgoingRows:
        """Returns what *sink* sends of *entry*.

        *operators* are in the order of the topology. Sinks before *sink* with the same topic have used the numbers
        below `first`.
        """
        before = 0
        # Sinks of one topic share the numbers of its ids.
        for operator in operators:
            if operator == sink:
                break
            if isinstance(operator, Sink) and operator.topic and _topic(operator) == _topic(sink):
                before += entry.tables[operator.name].num_rows if operator.name in entry.tables else 0
        batch = entry.notes.decision.batch
        # A row has two ids, for its first and its second try.
        return cls(
            sink=sink,
            rows=entry.tables[sink.name],
            batch_id=entry.batch_id,
            epoch=batch.epoch,
            first=2 * before,
            decided_at_ms=batch.decided_at_ms,
        )

    @property
    def tasks(self) -> int:
        """The number of tasks that send the rows, one per file of them, or 0 if the driver sends them."""
        return len(self.rows.files) if isinstance(self.rows, Files) and self.rows.num_rows >= MANY else 0


def _topic(sink: Sink) -> tuple[str, str | None]:
    return sink.kafka, sink.topic
