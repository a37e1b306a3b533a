"""Finds changes of the fields of a stream's topics, batch by batch.

The rule is in `semantics.schema_watch`. This module knows the declared fields, and makes the rows of `schema_changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tidemark.model.kinds.source import Source
from tidemark.model.settings.declared_fields import outermost
from tidemark.model.topology import SubTopology
from tidemark.semantics.progress import StreamProgress
from tidemark.semantics.schema_watch import ChangedField, FieldSample, SourceFields, step, watch
from tidemark.stream.journal.batch import MicroBatch


class SchemaWatch:
    """Watches the fields of the topics that *sub* reads."""

    def __init__(self, sub: SubTopology) -> None:
        self._sources: dict[str, tuple[Source, frozenset[str]]] = {}
        for source in sub.outside_sources:
            if source.is_watched:
                # A field inside an object is declared by the object around it.
                declared = map(step, outermost(source.types_of_values))
                self._sources[source.name] = source, frozenset(declared)

    def decided(
        self, batch: MicroBatch, now: StreamProgress, samples: Mapping[str, FieldSample]
    ) -> tuple[StreamProgress, list[dict[str, Any]]]:
        """Returns the progress *now* with the fields that topics have, and rows of `schema_changes`.

        *samples* has, by source, the fields of some records of *batch*.
        """
        fields: dict[str, SourceFields] = {}
        rows: list[dict[str, Any]] = []
        for name, (source, declared) in self._sources.items():
            was = now.fields.get(name, SourceFields())
            sample = samples.get(name, FieldSample())
            fields[name], changes = watch(was, sample, declared, now_ms=batch.decided_at_ms)
            rows += [_row(source, change) for change in changes]
        return replace(now, fields=fields), rows


def _row(source: Source, change: ChangedField) -> dict[str, Any]:
    return {
        "source": source.name,
        "topic": source.topic,
        "field": change.field,
        "change": change.found.change.value,
        "type": change.found.type,
        "was_type": change.found.was_type,
        "declared": change.is_declared,
        "found_at": change.found.found_ms,
        "first_seen_at": change.seen.first_ms,
        "last_seen_at": change.seen.last_ms,
    }
