"""Asks the scenes of `frozen_plays` all that users can ask, and compares the answers with stored ones.

The answers were stored when there was one table per grain. They must stay the same, cell by cell, but for names.
RENAMED, WORDS and MOVED are the one place for those, and CHANGED has the cells that may differ, with the reason.

`PYTHONPATH=jobs:tests python -m support.frozen` stores the answers of this checkout.
"""

from __future__ import annotations

import hashlib
import html
import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.command_line import tidemark
from support.frozen_plays import CLOCK, SCENES, Scene
from tidemark.cli.explain import trace as trace_command
from tidemark.errors import TidemarkError
from tidemark.facts.history import history
from tidemark.facts.interval_facts import PageFacts, page_facts
from tidemark.facts.latency_places import ChartSpan
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.files import CHECKOUT, VARIABLE
from tidemark.model.project.layout import CHANGES_OF
from tidemark.model.settings.intervals import iso
from tidemark.model.slas.sla_spec import known_slas
from tidemark.model.tables.catalog import TABLES
from tidemark.query.sql import Warehouse
from tidemark.query.views import views
from tidemark.reports.documents.bound import bound_document
from tidemark.reports.documents.topology import topology_document
from tidemark.reports.pages.interval_page import page as interval_page
from tidemark.reports.pages.page_model import page_model, subjects_of
from tidemark.reports.pages.topology_page import history_page, operator_page, start_page, topology_page
from tidemark.reports.promises import promises
from tidemark.sla.page import sla_page
from tidemark.trace.counts import reconcile
from tidemark.trace.lineage import trace_row

FOLDER = Path(__file__).parents[1] / "delta" / "frozen"
COOKBOOK = (CHECKOUT / "docs" / "cookbook.md").read_text(encoding="utf-8")
QUESTIONS: dict[str, str] = dict(re.findall(r"## (\d+)\. .*?```sql\n(.*?)```", COOKBOOK, re.DOTALL))

# What may differ from the stored answers

RENAMED: Mapping[str, str] = {}
"""New names of columns, and of fields of lists and documents, by old ones.

A name applies everywhere, or after `QUESTION: ` to one answer: {"said": "message", "table watermarks: held_by":
"blocked_by"}.
"""
WORDS: Mapping[str, str] = {}
"""New words by old ones in texts of commands and pages, and in cells that are such a word alone, as names of tables."""
MOVED: Mapping[str, str] = {}
"""Queries by the name of an old table that return its rows from new tables, under the new names of its columns.

A table that only has a new name: {"sla_alerts": "FROM alerts"}. Cells of tables whose columns are stored as digests are
not renamed by WORDS.
"""


@dataclass(frozen=True)
class Changed:
    """Cells that may differ, in answers and columns (of a document: paths) that match these patterns of `fnmatch`."""

    scene: str
    question: str
    column: str
    why: str


WAITED = "windows whose last records max_drift had held were `unknown`, and are told by what let these records go"
CHANGED: Sequence[Changed] = (
    Changed("drift", "table window_parts", "*", WAITED),
    Changed("drift", "command status", "topologies*.path.parts*", WAITED),
    Changed("drift", "command status", "topologies*.path.spent*", WAITED),
    Changed("drift", "command status", "topologies*.path.steps*.worked_ms", WAITED),
    Changed("drift", "command path", "windows*.parts*", WAITED),
    Changed("drift", "command path", "windows*.steps*.worked_ms", WAITED),
)
MACHINE = (
    (re.compile(r"/\S*?/project\b"), "PROJECT"),
    # Workers of shards are processes of their own, which tell the machine's name. The stored answers are those of `vm`.
    (re.compile(rf"\A{re.escape(platform.node())}\Z"), "vm"),
    # delta-rs, which merges current rows, dates its commits by a clock of its own.
    (re.compile(r"(since version \d+), [-\d:.TZ]+"), r"\1, COMMITTED"),
    (re.compile(r'"at": "[-\d:.TZ]+"'), '"at": "COMMITTED"'),
)
"""What depends on the machine or the run, and what stands for it: the only place that leaves something out."""
OF_THE_READER = ("as_of", "stale_ms", "watermark_behind_ms")
"""Columns of `freshness_now` that follow DuckDB's own clock."""
MOST_ROWS = 120
"""Of an answer with more rows each column is stored as a digest of its cells."""

Cell = Any
"""A value of JSON."""


class Answer(NamedTuple):
    """Column names, and rows of values of JSON, in an order that follows from the values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


# The questions


class Asker:
    """Asks *scene* questions by name."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._tables = Warehouse(scene.warehouse)

    def names(self) -> Iterator[str]:
        """Yields the questions of today that the scene is for."""
        yield from (name for name in self._all_names() if self.scene.asks(name))

    def _all_names(self) -> Iterator[str]:
        hidden = [name for name in TABLES if name == "table_files"]
        user = [name for name in self._tables.tables if name not in TABLES and not name.startswith(CHANGES_OF)]
        yield from (f"table {name}" for name in sorted([*TABLES, *user]) if name not in hidden)
        yield from (f"view {view.name}" for view in views())
        yield "view kafka_metrics"
        yield from (f"cookbook {int(number):02}" for number in QUESTIONS if self._has(QUESTIONS[number]))
        yield from self._documents
        yield from self._texts
        if self.scene.kept is not None:
            yield from (f"trace record {place}" for place in self.scene.records)
            yield from (f"trace row {table} {key}" for table, key in self.scene.rows)

    def answer(self, question: str) -> Answer:
        """Returns the answer to *question*; one that is refused is the text of the error."""
        try:
            return self._answer(question)
        except TidemarkError as error:
            return of_text(f"refused: {error}")

    def _answer(self, question: str) -> Answer:
        kind, _, name = question.partition(" ")
        if kind == "cookbook":
            return self._ask(self._in_own_words(QUESTIONS[str(int(name))]))
        if kind == "table" or kind == "view":
            text = MOVED.get(name, f'SELECT * FROM "{name}"')
            return self._ask(text, without=OF_THE_READER if name == "freshness_now" else ())
        if question in self._documents:
            return of_document(self._documents[question]())
        if question in self._texts:
            return of_text(self._texts[question]())
        which, _, rest = name.partition(" ")
        assert kind == "trace", question
        return of_text(self._trace(rest) if which == "record" else self._trace_row(*rest.split(" ", 1)))

    def _ask(self, text: str, without: Sequence[str] = ()) -> Answer:
        answer = self._tables.ask(text)
        kept = [n for n, name in enumerate(answer.columns) if name not in without]
        rows = [tuple(plain(row[n]) for n in kept) for row in answer.rows]
        return Answer(tuple(answer.columns[n] for n in kept), tuple(sorted(rows, key=_order)))

    def _in_own_words(self, text: str) -> str:
        for word, own in self.scene.words.items():
            text = text.replace(word, own)
        return text

    def _has(self, text: str) -> bool:
        return "flight_board" not in text or "flight_board" in self._tables.tables

    @cached_property
    def _documents(self) -> dict[str, Callable[[], object]]:
        """Questions with answers in JSON."""
        scene, name, at = self.scene, self.scene.topology.name, iso(self.scene.at_ms)
        topology = name if scene.topology.jobs else str(scene.home / "topologies" / f"{name}.toml")
        commands = {
            "why": ("why", topology, "--at", at),
            "status": ("status",),
            "topology": ("topology", topology, "--at", at),
            "path": ("path", topology, "--last", "2"),
            "incidents": ("incidents", topology, "--all"),
        }
        if not scene.topology.jobs:
            commands["bound"] = ("bound", topology)
        tables = [o.table for o in scene.topology.operators.values() if getattr(o, "complete_ms", None) and o.table]
        for table in tables:
            commands[f"complete {table}"] = ("complete", table, "--at", iso(scene.reported.start_ms + 5_000))
        found: dict[str, Callable[[], object]] = {
            f"command {label}": lambda words=words: json.loads(self._command(*words, "--format", "json"))
            for label, words in commands.items()
        }
        found["facts of the report"] = lambda: _in_order(page_facts(self._own_tables, scene.topology, scene.reported))
        found["reconcile"] = lambda: _fields(
            reconcile(
                scene.kept.tracer(),  # type: ignore[union-attr]
                scene.kept._play.broker.offsets,  # type: ignore[union-attr]
                "events",
                start_ms=scene.reported.start_ms,
                end_ms=scene.reported.end_ms,
            )
        )
        if scene.kept is None:
            del found["reconcile"]
        return found

    @cached_property
    def _texts(self) -> dict[str, Callable[[], str]]:
        """Questions with answers that people read."""
        scene, topology = self.scene, self.scene.topology
        file = topology.name if topology.jobs else str(scene.home / "topologies" / f"{topology.name}.toml")
        at = iso(scene.at_ms)
        work = next((o.name for o in topology.operators.values() if o.kind == "aggregate"), topology.terminals[0])
        found: dict[str, Callable[[], str]] = {
            "text of whatif": lambda: "\n".join(
                self._command("whatif", file, *how)
                for how in (("--trigger", "500 ms"), ("--bound", "1 s"), ("--operator", work, "--scale", "0.5"))
            ),
            "text of topology": lambda: self._command("topology", file, "--at", at),
            "text of incidents": lambda: self._command("incidents", file, "--all"),
            "text of suggest": lambda: self._command("suggest", "slas", file),
            "metrics": self._metrics,
            "start page": lambda: _seen(start_page([self._whole_model], folder=scene.home)),
            "page of the topology": lambda: _seen(topology_page(self._whole_model, self._moving(), topology)),
            "page of the report": lambda: _seen(
                interval_page(page_facts(self._own_tables, topology, scene.reported, now_ms=scene.at_ms))
            ),
            "page of the SLAs": lambda: _seen(sla_page(scene.warehouse, topology.name, self._whole_model)),
            "page of the history": lambda: _seen(
                history_page(topology, self._history([*topology.terminals]), at_ms=scene.at_ms)
            ),
        }
        source = topology.outside_sources[0].name
        found[f"page of the operator {source}"] = lambda: _seen(self._operator_page(source))
        return found

    @cached_property
    def _own_tables(self) -> Warehouse:
        return Warehouse(self.scene.warehouse, topology=self.scene.topology.name)

    @cached_property
    def _whole_model(self) -> dict[str, Any]:
        return self._model()

    def _model(self, operator: str | None = None) -> dict[str, Any]:
        scene = self.scene
        promised = promises(known_slas(scene.topology).specs)
        return page_model(
            self._own_tables, scene.layout, scene.topology, promised, at_ms=scene.at_ms, operator=operator
        )

    def _moving(self) -> dict[str, Any]:
        return topology_document(self.scene.warehouse, self.scene.topology, at_ms=self.scene.at_ms)

    def _history(self, operators: list[str], subjects: Sequence[str] = ()) -> Any:
        return history(
            self._own_tables,
            self.scene.topology.name,
            operators,
            ChartSpan.HOUR,
            at_ms=self.scene.at_ms,
            subjects=subjects,
        )

    def _operator_page(self, operator: str) -> str:
        topology, subjects = self.scene.topology, subjects_of(self.scene.topology, operator)
        is_source = operator in {each.name for each in topology.outside_sources} and not topology.jobs
        bounds = bound_document(self.scene.warehouse, topology, source=operator)["bounds"] if is_source else []
        return operator_page(
            self._model(operator),
            self._moving(),
            topology,
            operator,
            self._history([operator], subjects),
            bounds,
        )

    def _metrics(self) -> str:
        registry = CollectorRegistry()
        registry.register(Exporter(self.scene.layout, lambda: [self.scene.topology], clock=lambda: self.scene.at_ms))
        return generate_latest(registry).decode()

    def _trace(self, place: str) -> str:
        assert self.scene.kept is not None
        trace = self.scene.kept.tracer().trace(trace_command.record_place(place))
        return f"{trace_command.as_text(trace)}\n{json.dumps(plain(trace.document), indent=1)}"

    def _trace_row(self, table: str, key: str) -> str:
        assert self.scene.kept is not None
        row = trace_row(self.scene.kept.tracer(), table, key)
        return f"{trace_command.row_as_text(row)}\n{json.dumps(plain(row.document), indent=1)}"

    def _command(self, *words: str) -> str:
        home = self.scene.home
        done = tidemark(home, "--warehouse", str(self.scene.warehouse), *words, **{VARIABLE: str(home)})
        return done.stdout or json.dumps({"refused": done.stderr})


# Answers


def plain(value: Any) -> Cell:
    """Returns *value* as one of JSON that no machine and no run changes; instants are ISO 8601."""
    match value:
        case datetime():
            return iso(round(value.timestamp() * 1_000))
        case date():
            return value.isoformat()
        case bool() | int() | None:
            return value
        case float():
            return float(f"{value:.10g}") if value == value and abs(value) != float("inf") else str(value)
        case Decimal():
            return plain(float(value))
        case bytes() | bytearray():
            return bytes(value).decode("latin-1")
        case Mapping():
            return {str(name): plain(of) for name, of in value.items()}
        case str():
            return of_any_machine(str(value))
        case list() | tuple() | set() | frozenset():
            return [plain(of) for of in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
        case _:
            return plain(_fields(value)) if is_dataclass(value) else of_any_machine(str(value))


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, without the topology that it may be about."""
    return {each.name: getattr(value, each.name) for each in fields(value) if each.name != "topology"}


def _in_order(facts: PageFacts) -> dict[str, Cell]:
    """Returns *facts* with lists in an order that follows from their rows: charts need none."""
    return {
        name: sorted(value, key=lambda row: _order((row,))) if isinstance(value, list) else value
        for name, value in plain(facts).items()
    }


def of_any_machine(text: str) -> str:
    for pattern, word in MACHINE:
        text = pattern.sub(word, text)
    return text


def of_text(text: str) -> Answer:
    """Returns the lines of *text*, with one blank where columns are aligned by several."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in of_any_machine(text).splitlines()]
    return Answer(("line",), tuple((line,) for line in lines if line))


def of_document(value: object) -> Answer:
    """Returns a row for each value of a document: its path, and the value."""
    return Answer(("path", "value"), tuple(_values("", plain(value))))


def _values(path: str, value: Cell) -> Iterator[tuple[str, Cell]]:
    match value:
        case dict():
            for name in sorted(value):
                yield from _values(f"{path}.{name}" if path else name, value[name])
        case list() if any(isinstance(each, dict | list) for each in value):
            for number, each in enumerate(value):
                yield from _values(f"{path}[{number}]", each)
        case _:
            yield path, value


def _seen(page: str) -> str:
    """Returns what a page in HTML shows, a line for each element."""
    body = re.sub(r"(?s)<(style|script|head)\b.*?</\1>", "", page)
    return html.unescape(re.sub(r"<[^>]*>", "\n", body))


def _order(row: tuple[Cell, ...]) -> str:
    return json.dumps(row, ensure_ascii=False)


# Comparing


def renamed(question: str, answer: Answer) -> Answer:
    """Returns a stored *answer* under the new names."""
    own = f"{question}: "
    names = {old: new for old, new in RENAMED.items() if ": " not in old}
    names |= {old.removeprefix(own): new for old, new in RENAMED.items() if old.startswith(own)}
    if not names and not WORDS:
        return answer
    words = re.compile(rf"\b({'|'.join(map(re.escape, [*WORDS] or ['(?!)']))})\b") if WORDS else None

    def value(of: Cell) -> Cell:
        match of:
            case dict():
                return {names.get(name, name): value(each) for name, each in of.items()}
            case list():
                return [value(each) for each in of]
            case str():
                return WORDS.get(of, of)
        return of

    if answer.columns == ("line",):
        lines = [words.sub(lambda found: WORDS[found[1]], line) if words else line for (line,) in answer.rows]
        return Answer(answer.columns, tuple((line,) for line in lines))
    if answer.columns == ("path", "value"):
        rows = [
            (re.sub(r"\w+", lambda found: names.get(found[0], found[0]), path), value(of)) for path, of in answer.rows
        ]
        return Answer(answer.columns, tuple(sorted(rows, key=_order)))
    if is_digest(answer):
        return Answer(answer.columns, tuple((names.get(row[0], row[0]), *row[1:]) for row in answer.rows))
    rows_of_values = sorted((tuple(map(value, row)) for row in answer.rows), key=_order)
    return Answer(tuple(names.get(name, name) for name in answer.columns), tuple(rows_of_values))


def differences(scene: str, question: str, stored: Answer, found: Answer) -> list[str]:
    """Returns what *found* has otherwise than *stored*, whose names are the new ones.

    A table may have new columns, and its columns may have another order. An object of a document may have new fields.
    """
    may_change = [each for each in CHANGED if fnmatch(scene, each.scene) and fnmatch(question, each.question)]

    def is_left_out(column: str) -> bool:
        return any(fnmatch(column, each.column) for each in may_change)

    if stored.columns != found.columns and found.columns == ("line",):
        return [f"{scene}, {question}: {line}" for (line,) in found.rows]
    if stored.columns in UNNAMED:
        kept_rows = (
            Answer(each.columns, tuple(row for row in each.rows if not is_left_out(str(row[0]))))
            for each in (stored, found)
        )
        was, now = kept_rows
        return _told(scene, question, was, _without_new_fields(was, now) if was.columns == ("path", "value") else now)
    if question.startswith("cookbook") and not is_digest(stored) and stored.columns != found.columns:
        return [f"{scene}, {question}: its columns were {stored.columns}, and are {found.columns}"]
    names = [row[0] for row in stored.rows] if is_digest(stored) else stored.columns
    kept = [name for name in names if not is_left_out(name)]
    if missing := [name for name in kept if name not in found.columns]:
        return [f"{scene}, {question}: it lacks the columns {', '.join(missing)}; it has {', '.join(found.columns)}"]
    if not kept:
        return []
    same = picked(found, kept)
    if is_digest(stored):
        rows = tuple(row for row in stored.rows if row[0] in kept)
        return _told(scene, question, Answer(stored.columns, rows), digest(same))
    return _told(scene, question, picked(stored, kept), same)


def _without_new_fields(stored: Answer, found: Answer) -> Answer:
    """Returns the document *found* without the fields that no object of *stored* has in their place."""
    paths = {re.sub(r"\[\d+\]", "", path) for path, _ in stored.rows}
    objects = {path[: end.start()] for path in paths for end in re.finditer(r"\.|$", path)} | {""}

    def is_new(path: str) -> bool:
        path = re.sub(r"\[\d+\]", "", path)
        known = max((each for each in objects if f"{path}.".startswith(f"{each}." if each else "")), key=len)
        # What was no object, such as null or an empty list, has got no fields but another value.
        return known != path and known not in paths

    return Answer(found.columns, tuple(row for row in found.rows if not is_new(row[0])))


UNNAMED = (("line",), ("path", "value"))
"""Columns of texts and documents."""
OF_DIGESTS = ("column", "rows", "digest")


def is_digest(answer: Answer) -> bool:
    return answer.columns == OF_DIGESTS


def picked(answer: Answer, names: Sequence[str]) -> Answer:
    """Returns the columns *names* of *answer*."""
    places = [answer.columns.index(name) for name in names]
    rows = sorted((tuple(row[n] for n in places) for row in answer.rows), key=_order)
    return Answer(tuple(names), tuple(rows))


def digest(answer: Answer) -> Answer:
    """Returns a row for each column of *answer*, with a digest of its cells in any order."""
    rows = []
    for n, name in enumerate(answer.columns):
        cells = sorted(_order((row[n],)) for row in answer.rows)
        rows.append((name, len(cells), hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]))
    return Answer(OF_DIGESTS, tuple(rows))


def _told(scene: str, question: str, stored: Answer, found: Answer) -> list[str]:
    """Returns the rows that only one of two answers has, at most MOST_TOLD of each."""
    before, now = Counter(map(_order, stored.rows)), Counter(map(_order, found.rows))
    if before == now:
        return []
    heading = f"{scene}, {question}: {', '.join(stored.columns)}"
    lost = [f"  was {row}" for row in sorted((before - now).elements())[:MOST_TOLD]]
    return [heading, *lost, *(f"  is  {row}" for row in sorted((now - before).elements())[:MOST_TOLD])]


MOST_TOLD = 5


def unused() -> list[str]:
    """Returns what of RENAMED, WORDS, MOVED and CHANGED no stored answer has."""
    answers = [(scene, question, answer) for scene in SCENES for question, answer in read(scene).items()]
    content = "\n".join((FOLDER / f"{scene}.jsonl").read_text(encoding="utf-8") for scene in SCENES)
    known = {*re.findall(r"\w+", content)}
    words = [word for word in [*WORDS, *(old.rpartition(": ")[2] for old in RENAMED)] if not known & {*word.split()}]
    tables = [name for name in MOVED if f'"table {name}"' not in content and f'"view {name}"' not in content]
    new_names = [(scene, question, renamed(question, answer)) for scene, question, answer in answers]
    changed = [each for each in CHANGED if not any(_concerns(each, *answer) for answer in new_names)]
    return [*words, *tables, *map(str, changed)]


def _concerns(each: Changed, scene: str, question: str, answer: Answer) -> bool:
    of_rows = answer.columns in UNNAMED or is_digest(answer)
    names = [str(row[0]) for row in answer.rows] if of_rows else answer.columns
    of_question = fnmatch(scene, each.scene) and fnmatch(question, each.question)
    # A line of a text, or a value of a document, may be new.
    return of_question and (answer.columns in UNNAMED or any(fnmatch(name, each.column) for name in names))


# Files


def read(scene: str) -> dict[str, Answer]:
    """Returns the stored answers of *scene* by question."""
    answers: dict[str, Answer] = {}
    rows: list[tuple[Cell, ...]] = []
    question, columns = "", ()
    for line in [
        *(FOLDER / f"{scene}.jsonl").read_text(encoding="utf-8").splitlines(),
        '{"question": "", "columns": []}',
    ]:
        match json.loads(line):
            case {"question": next_question, "columns": names}:
                if question:
                    answers[question] = Answer(columns, tuple(rows))
                question, columns, rows = next_question, tuple(names), []
            case row:
                rows.append(tuple(row))
    return answers


def write(scene: str, answers: Mapping[str, Answer]) -> None:
    """Stores the answers of *scene*, a line for each row."""
    lines = []
    for question, answer in answers.items():
        stored = digest(answer) if len(answer.rows) > MOST_ROWS and answer.columns not in UNNAMED else answer
        lines.append(json.dumps({"question": question, "columns": stored.columns}))
        lines += [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in stored.rows]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{scene}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def asker(scene: str, home: Path) -> Iterator[Asker]:
    """Plays *scene* in the project *home*, and gives what asks it, while the clock stands still."""
    with CLOCK.set_up(), pytest.MonkeyPatch.context() as patch:
        played = SCENES[scene](home)
        patch.setenv(VARIABLE, str(home))
        CLOCK.read = lambda: played.at_ms
        yield Asker(played)


def main() -> None:
    """Stores the answers of this checkout, of all scenes or of those that are named."""
    for scene in sys.argv[1:] or SCENES:
        with TemporaryDirectory() as folder, asker(scene, Path(folder) / "project") as asks:
            write(scene, {question: asks.answer(question) for question in asks.names()})


if __name__ == "__main__":
    main()
