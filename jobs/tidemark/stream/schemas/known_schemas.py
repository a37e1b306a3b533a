"""Keeps the schemas that records name, and gets new ones.

The schema of an id never changes, so a file of the control folder keeps them: a driver that starts while the registry
is down reads records of known ids.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidSpec
from tidemark.kernels.formats.wire_format import ids_needed, misfit_of
from tidemark.kernels.formats.written_schema import KnownSchemas, WrittenSchema
from tidemark.model.kinds.kafka_end import Format
from tidemark.model.kinds.operator import Operator
from tidemark.model.kinds.source import Source
from tidemark.model.project.extras import require
from tidemark.model.project.registries import Registries
from tidemark.storage.location import replace
from tidemark.stream.schemas.registry_client import NotPermitted, NotRegistered, RegistryClient, RegistryUnavailable
from tidemark.stream.schemas.schema_source import latest_schema, schema_of_id

log = logging.getLogger("tidemark.stream")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1, 30
UNUSABLE_FOR_MS = 60_000
"""Time after which a schema of no use is asked for again."""
MOST_UNUSABLE = 1_000
"""Most schemas that are missing or of no use that are kept between two batches.

Records of another wire format may seem to have any id.
"""
CONFIRMED_AFTER_S = 2
"""A missing id is asked for again after this: a host of a registry may get a new schema later than others."""
FILE = "schemas.json"


def nothing_to_check() -> None:
    """Ends no wait."""


class SchemaStore:
    """Keeps the schemas that records of a stream's sources need.

    How it works: `resolve` asks the registry for each id that is not known. While the registry does not answer, the
    batch waits and asks again, after 1, 2, 4, … and at most LONGEST_PAUSE_S seconds. Each second of a pause begins
    with *check*, whose error ends the wait: a drain was requested, or the lease is lost. `trouble` is the present
    problem, for the heartbeat; the log has it once. A schema that is missing or of no use is asked for again after
    UNUSABLE_FOR_MS, and no file has it: a registry may get it or its references later, and a compiler may be killed.

    Args:
        registries: the registries of the topology, by name.
        home: the control folder of the stream, in which schemas are kept, or None to keep none.
        check: raises if the driver must not go on.
        sleep_s: waits.
        clock: dates schemas that are missing or of no use.
        most_unusable: most of these that are kept between two batches.
    """

    def __init__(
        self,
        registries: Registries,
        home: Path | None,
        check: Callable[[], None] = nothing_to_check,
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        clock: Clock = wall_clock_ms,
        most_unusable: int = MOST_UNUSABLE,
    ) -> None:
        self._most_unusable = most_unusable
        self._clients = {name: RegistryClient(registry) for name, registry in registries.items()}
        self._file = home / FILE if home is not None and registries else None
        self._check, self._sleep_s, self._clock = check, sleep_s, clock
        self._known: dict[str, dict[int, WrittenSchema]] = {name: {} for name in registries}
        self._unusable_since_ms: dict[tuple[str, int], int] = {}
        self.trouble: str | None = None
        self._load()

    @property
    def known(self) -> KnownSchemas:
        """The schemas so far, by registry and id, without those that have to be asked for again."""
        usable: dict[str, dict[int, WrittenSchema]] = {}
        for name, schemas in self._known.items():
            usable[name] = {id_: schema for id_, schema in schemas.items() if not self._is_to_ask(name, id_)}
        return usable

    def check_latest(self, sources: Iterable[Source], file: str) -> None:
        """Compares the latest version of each subject with its source.

        If a registry does not answer or does not have the subject, that is only logged, and so is a version that does
        not fit if the stream has read records of the registry before.

        Raises:
            InvalidSpec: records of a latest version would all be quarantined.
            InvalidArgument: a login is refused, or a source needs a compiler of Protobuf that is not installed.
        """
        had_schemas = {name: bool(schemas) for name, schemas in self._known.items()}
        latest: list[tuple[str, int, WrittenSchema]] = []
        for source in sources:
            if source.registry is None:
                continue
            if source.format is Format.PROTOBUF:
                require("grpc_tools")
            if not source.subject:
                continue
            client = self._clients[source.registry]
            try:
                id_, schema = latest_schema(client, source.subject)
            except (RegistryUnavailable, NotRegistered) as error:
                log.warning("operators.%s: its schema is not checked at the start: %s", source.name, error)
                continue
            if (problem := misfit_of(id_, schema, source)) is not None:
                key = f"operators.{source.name}.fields"
                seen = f"are not those of {source.subject}, whose latest version is {problem}"
                remedy = "correct `fields` and `format`, or `subject` if that is not the subject of these records"
                # A wrong version must not stop a stream that reads records of earlier ones.
                if not had_schemas[source.registry]:
                    raise InvalidSpec.at(file, key, seen, remedy)
                log.warning("%s %s; its records are quarantined", key, seen)
            latest.append((source.registry, id_, schema))
        # Only a start that every source permits makes this a stream that has run.
        for name, id_, schema in latest:
            self._keep(name, {id_: schema})

    def require_answers(self) -> None:
        """Raises RegistryUnavailable, or RegistryRefused, unless each registry gives a good answer now."""
        for client in self._clients.values():
            client.answers()

    def resolve(self, raw: pl.DataFrame, operators: Iterable[Operator]) -> KnownSchemas:
        """Returns all schemas that are needed to parse *raw* rows.

        Waits while a registry does not answer.

        Raises:
            InvalidArgument: a login is refused, or may read no schema.
        """
        self._forget_unusable()
        for name, ids in needed(raw, operators).items():
            self._get(name, sorted(id_ for id_ in ids if self._is_to_ask(name, id_)))
        # Not `known`: this batch also needs schemas that have become due again while the registry was asked.
        return {name: dict(schemas) for name, schemas in self._known.items()}

    def _is_to_ask(self, name: str, id_: int) -> bool:
        if id_ not in self._known[name]:
            return True
        since_ms = self._unusable_since_ms.get((name, id_))
        return since_ms is not None and self._clock() - since_ms >= UNUSABLE_FOR_MS

    def _forget_unusable(self) -> None:
        """Removes the oldest schemas of no use beyond their limit."""
        too_many = max(0, len(self._unusable_since_ms) - self._most_unusable)
        for name, id_ in [*self._unusable_since_ms][:too_many]:
            del self._unusable_since_ms[name, id_], self._known[name][id_]

    def _get(self, name: str, ids: list[int]) -> None:
        """Gets the schemas *ids* of a registry, and waits until it answers."""
        is_confirmed, missing, pause_s = False, list[int](), FIRST_PAUSE_S
        while ids:
            try:
                self._ask(name, ids, missing, is_confirmed=is_confirmed)
            except RegistryUnavailable as error:
                self._tell(f"waits for the schema {ids[0]}: {error}")
                self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            self._is_well()
            if missing:
                # All together, so that many ids of no schema cost one pause.
                self._pause(CONFIRMED_AFTER_S)
            ids, missing, is_confirmed = missing, [], True

    def _ask(self, name: str, ids: list[int], missing: list[int], *, is_confirmed: bool) -> None:
        """Asks for *ids*, and removes those that are answered.

        An id for which the registry has no schema is added to *missing*. It counts as answered only if *is_confirmed*
        says that this was found before.

        Raises:
            NotPermitted: the login may read none of the registry's schemas.
        """
        answers: dict[int, WrittenSchema] = {}
        refusal: NotPermitted | None = None
        try:
            while ids:
                self._check()
                try:
                    schema = schema_of_id(self._clients[name], ids[0])
                except NotPermitted as error:
                    schema, refusal = WrittenSchema(problem=f"may not be read: {error}"), error
                if schema.is_missing and not is_confirmed and ids[0] not in self._known[name]:
                    missing.append(ids[0])
                else:
                    answers[ids[0]] = schema
                del ids[0]
        finally:
            # Also after an error: the next attempt asks only for the ids that are left.
            self._keep(name, answers)
        # A login that may read others lacks a right of one subject, whose records are quarantined.
        if refusal is not None and not any(schema.is_usable for schema in self._known[name].values()):
            raise refusal

    def _pause(self, seconds: int) -> None:
        # Second by second: a drain or a lost lease must not wait for the end of a pause.
        for _ in range(seconds):
            self._check()
            self._sleep_s(1)

    def _keep(self, name: str, schemas: Mapping[int, WrittenSchema]) -> None:
        news = {id_: schema for id_, schema in schemas.items() if self._known[name].get(id_) != schema}
        self._known[name].update(schemas)
        for id_, schema in schemas.items():
            # Removed first, so that the newest are the last.
            self._unusable_since_ms.pop((name, id_), None)
            if not schema.is_usable:
                self._unusable_since_ms[name, id_] = self._clock()
            if id_ in news:
                state = "is missing" if schema.is_missing else schema.problem or f"is of the kind {schema.kind}"
                log.info("registry.%s: schema %s %s", name, id_, state)
        if self._file is not None and any(schema.is_usable for schema in news.values()):
            replace(self._file, json.dumps(self._content()))

    def _tell(self, trouble: str) -> None:
        last_trouble, self.trouble = self.trouble, trouble
        if last_trouble != trouble:
            log.warning("%s; tried again until it answers", trouble)

    def _is_well(self) -> None:
        if self.trouble is not None:
            log.info("the registry answers again")
        self.trouble = None

    def _content(self) -> dict[str, Any]:
        """Returns the kept schemas, by the address of their registry."""
        content: dict[str, Any] = {}
        for name, schemas in self._known.items():
            # The next driver asks for the others again: they may be registered or repaired later.
            kept = {id_: _as_json(schema) for id_, schema in schemas.items() if schema.is_usable}
            # An id means nothing at another registry.
            content.setdefault(self._clients[name].registry.url, {}).update(kept)
        return content

    def _load(self) -> None:
        if self._file is None:
            return
        try:
            content = _of_content(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return
        # Another version may have written the file in another form.
        except (ValueError, TypeError, LookupError, AttributeError):
            log.warning("%s cannot be read; the registry is asked again", self._file)
            return
        for name, client in self._clients.items():
            self._known[name].update(content.get(client.registry.url, {}))


def needed(raw: pl.DataFrame, operators: Iterable[Operator]) -> dict[str, set[int]]:
    """Returns the ids of schemas that are needed to parse *raw* rows, by the name of their registry."""
    ids: dict[str, set[int]] = {}
    for source in operators:
        if isinstance(source, Source) and source.registry is not None:
            values = raw.filter(pl.col("source") == source.name)["value"]
            ids.setdefault(source.registry, set()).update(ids_needed(values, source))
    return ids


def are_known(raw: pl.DataFrame, operators: Iterable[Operator], schemas: KnownSchemas) -> bool:
    """Returns True if *schemas* has all that *raw* rows need."""
    return all(ids <= schemas.get(name, {}).keys() for name, ids in needed(raw, operators).items())


def _as_json(schema: WrittenSchema) -> dict[str, Any]:
    return {**asdict(schema), "descriptors": base64.b64encode(schema.descriptors).decode()}


def _of_content(content: Mapping[str, Any]) -> dict[str, dict[int, WrittenSchema]]:
    """Returns the usable schemas of a file, by address and id."""
    schemas: dict[str, dict[int, WrittenSchema]] = {}
    for url, by_id in content.items():
        of_url = {int(id_): _of_json(schema) for id_, schema in by_id.items()}
        schemas[url] = {id_: schema for id_, schema in of_url.items() if schema.is_usable}
    return schemas


def _of_json(content: Mapping[str, Any]) -> WrittenSchema:
    return WrittenSchema(
        **{
            **content,
            "referenced": tuple(content["referenced"]),
            "descriptors": base64.b64decode(content["descriptors"]),
        }
    )
