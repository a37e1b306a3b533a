"""Finds the event time of a sample: the field that a stream reads as one, and that looks like it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.model.settings.retention import DAY_MS
from tidemark.sample.fields import FieldsByColumn
from tidemark.sample.parsed import parse_sample, source_of, usable
from tidemark.sample.topic_sample import SampledRecord, TopicSample

USUAL = 0.95
"""Share of the records that have an event time."""
FORMS: Mapping[type, Sequence[tuple[str, str | None]]] = {
    str: (("timestamp", None),),
    int: (("bigint", "s"), ("bigint", "ms"), ("bigint", "us"), ("bigint", "ns")),
}
"""The types, each with its unit, as which a stream may read event times, by the type of the value in JSON.

A number fits one unit at most: a source accepts the years 2000 to 2099, and a time in them that is read in another unit
is far outside of them.
"""
LOOKED_AT = 50
"""Records in which all fields are tried; what is no time in half of them is none."""
LIKELY = ("event", "timestamp", "ts", "time", "occurred", "measured", "observed", "read", "recorded", "created", "at")
"""Words in the names of event times, the likeliest first."""
UNLIKELY = ("ingest", "ingested", "processed", "received", "sent", "updated", "expires", "due", "birth", "id")
YEAR_MS = 365 * DAY_MS


@dataclass(frozen=True)
class EventTime:
    """The column *name*, declared as *word*, has event times in a *share* of the records.

    *unit* is s, ms, us, ns, or None for ISO 8601.
    """

    name: str
    word: str
    unit: str | None
    share: float

    @property
    def text(self) -> str:
        """Its unit in words."""
        return f"epoch {self.unit}" if self.unit else "ISO 8601 text"

    @property
    def keys(self) -> dict[str, str]:
        """The keys of a source that reads it."""
        unit = {"timestamp_unit": self.unit} if self.unit else {}
        return {"timestamp": self.name, **unit}


@dataclass(frozen=True)
class TimeFields:
    """The columns *names* have times or dates; *likeliest* is the event time, None without any."""

    names: frozenset[str]
    likeliest: EventTime | None


@dataclass(frozen=True)
class TimeReader:
    """Reads event times of *sample* at *now_ms*, as a stream does."""

    sample: TopicSample
    now_ms: int

    def times_ms(self, at: EventTime, records: Sequence[SampledRecord]) -> list[int]:
        """Returns the event times of those *records* in which a stream reads *at*."""
        source = source_of([f"{at.name} {at.word}"], **at.keys)
        rows = parse_sample(source, replace(self.sample, records=tuple(records)), self.now_ms)
        return usable(rows)["timestamp_ms"].to_list()

    def best_form(
        self, column: str, readable: Sequence[tuple[SampledRecord, FieldsByColumn]]
    ) -> tuple[EventTime, list[int]] | None:
        """Returns the form in which a stream reads most times of *column*, and these; None without any."""
        step = -(-len(readable) // LOOKED_AT)
        kinds = Counter(type(fields[column]) for _, fields in readable[::step] if fields.get(column) is not None)
        forms = FORMS.get(kinds.most_common(1)[0][0], ()) if kinds else ()
        found: list[tuple[EventTime, list[int]]] = []
        for at in (EventTime(column, word, unit, 0) for word, unit in forms):
            looked_at = _with_one_field(column, readable[::step])
            if 2 * len(self.times_ms(at, looked_at)) >= len(looked_at):
                times_ms = self.times_ms(at, _with_one_field(column, readable))
                found.append((replace(at, share=len(times_ms) / len(readable)), times_ms))
        return max(found, key=lambda form: form[0].share, default=None)


def _with_one_field(column: str, readable: Sequence[tuple[SampledRecord, FieldsByColumn]]) -> list[SampledRecord]:
    """Returns the records with *column* alone, so that trying each field costs no more than reading all of them."""
    return [replace(record, value=json.dumps({column: fields.get(column)}).encode()) for record, fields in readable]


def time_fields(
    reader: TimeReader, columns: Iterable[str], readable: Sequence[tuple[SampledRecord, FieldsByColumn]]
) -> TimeFields:
    """Returns those of *columns* that a stream reads as event times of the *readable* records.

    A field with dates alone is no event time: all records of a day would have the same one.
    """
    kafka_ms = max(record.timestamp_ms for record, _ in readable)
    candidates: list[tuple[int, int, EventTime]] = []
    names: set[str] = set()
    for column in columns:
        form = reader.best_form(column, readable)
        if form is None:
            continue
        at, times_ms = form
        names.add(column)
        rank = _rank(column)
        # Without a word in its name a number has to lie near Kafka's clock: ids may look like times.
        is_time = at.unit is None or rank > 0 or (rank == 0 and abs(max(times_ms) - kafka_ms) < YEAR_MS)
        midnights = sum(time_ms % DAY_MS == 0 for time_ms in times_ms)
        if at.share >= USUAL and is_time and midnights < USUAL * len(times_ms):
            # Of equal ranks the first field wins, hence the negative number.
            candidates.append((rank, -len(candidates), at))
    best = max(candidates, key=lambda candidate: candidate[:2], default=None)
    return TimeFields(frozenset(names), best[2] if best else None)


def _rank(name: str) -> int:
    """Returns how likely *name* is that of an event time.

    0: the name has no such word; below 0: it has a word of another meaning.
    """
    words = name.split("_")
    if any(word in UNLIKELY for word in words):
        return -1
    for place, word in enumerate(LIKELY):
        if word in words:
            return len(LIKELY) - place
    return 0
