"""Hostile strings in records, tables and files stay data.

Every output for the corpus equals that for harmless strings in the same places, apart from the strings themselves.
"""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from email.message import EmailMessage
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unicodedata import category

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.hostile_strings import FORGED, HOSTILE
from support.play import Play
from support.topologies import NEWEST_SENT
from tidemark.cli.local.summary import summary
from tidemark.cli.main import main
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.facts.interval_facts import page_facts
from tidemark.kernels.columns.schemas import rows_of
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval
from tidemark.model.sla_event_rows import event_of
from tidemark.model.sla_events import IncidentChange
from tidemark.model.slas import channel_spec, sla_spec
from tidemark.model.tables.catalog import (
    CRITICAL_PATH_STEPS,
    CRITICAL_PATHS,
    HEARTBEATS,
    INCIDENTS,
    TABLES,
    Table,
)
from tidemark.model.topology import parse
from tidemark.query.sql import Warehouse
from tidemark.reports.batch_job import topology as topology_named
from tidemark.reports.pages import charts
from tidemark.reports.pages.interval_page import page
from tidemark.semantics.incidents import Change
from tidemark.sla.incidents.alert_message import message_of
from tidemark.sla.incidents.alert_text import alert_texts
from tidemark.sla.incidents.changes import alert_of
from tidemark.sla.incidents.due import DueAlert
from tidemark.sla.incidents.tables import acknowledge
from tidemark.sla.page import sla_page

NOON = 1_767_268_800_000  # 2026-01-01 12:00 UTC
TEXTS = [*HOSTILE.values()]
HARMLESS = [f"harmless{n:02}" for n in range(len(TEXTS))]
BY_SIZE = sorted(zip(TEXTS, HARMLESS, strict=True), key=lambda pair: -len(pair[0]))
CLOSED = {
    "topology": "many", "change": "opened", "verdict": "error", "measure": "burn_rate", "excluded_because": None,
    "scope": "operator", "grain": "minute", "severity": "critical", "level": "info",
    "over_sla": True, "step": 0, "slowest_upstream": None,
}  # fmt: skip
"""Columns of which readers expect one of a few words."""
STATES = {HEARTBEATS: "failed", CRITICAL_PATHS: "measured", CRITICAL_PATH_STEPS: "measured"}
SHORT = {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r"}


def shown(text: str) -> str:
    """Returns *text* as one terminal line without control characters.

    Of Unicode's "other" and "separator" characters the space alone is kept.
    """

    def one(char: str) -> str:
        if char == " " or category(char)[0] not in "CZ":
            return char
        units = char.encode("utf-16-be")
        return SHORT.get(char) or "".join(rf"\u{units[n] << 8 | units[n + 1]:04x}" for n in range(0, len(units), 2))

    return "".join(map(one, text))


def many() -> str:
    """A topology with a stream per string."""
    each = (
        f'[operators.e{n}]\nkind = "source"\nsub_topology = "s{n}"\ntopic = "t{n}"\nfields = "id string, at bigint"\n'
        f'timestamp = "at"\nbound = "1 s"\n[operators.o{n}]\nkind = "sink"\ninput = "e{n}"\ntable = "b{n}"\n'
        for n in range(len(TEXTS))
    )
    return "\n".join(['name = "many"', 'window = "5 s"', *each])


def planted(table: Table, n: int, text: str) -> dict[str, Any]:
    """Returns a row of *table* with *text* in every text column.

    Its numbers and instants are those of *n*.
    """
    words: dict[str, Any] = {
        "string": text, "binary": text.encode(), "timestamp": NOON + n * 5_000, "double": n + 1.5, "boolean": True,
        "array<struct<key:string,value:binary>>": [{"key": text, "value": text.encode()}],
    }  # fmt: skip
    row = {
        column.name: words.get(column.type, None if column.type.startswith("array") else n + 1)
        for column in table.columns
    }
    row |= {name: value for name, value in CLOSED.items() if name in row}
    row |= {"sub_topology": f"s{n}"} if "sub_topology" in row else {}
    return row | ({"state": STATES[table]} if table in STATES else {})


def warehouse(home: Path, texts: Sequence[str]) -> Path:
    """Each table with a row per text."""
    layout = Layout(home / "warehouse")
    for table in TABLES.values():
        rows = [planted(table, n, text) for n, text in enumerate(texts)]
        of_stream = layout.stream_table("many", "s0", table.name)
        path = of_stream if table.written_by == "stream" else layout.report_table("many", table.name)
        write_deltalake(path, rows_of(table, rows))
    (home / "many.toml").write_text(many())
    return home


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Creates two equal warehouses, one with harmless texts."""
    folder = tmp_path_factory.mktemp("homes")
    return warehouse(folder / "hostile", TEXTS), warehouse(folder / "harmless", HARMLESS)


@contextmanager
def signals_kept() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


class Terminal:
    """Runs commands and returns their output."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, home: Path, command: str, *arguments: str, status: int = 0) -> str:
        given = [str(home / "many.toml") if argument == "many" else argument for argument in arguments]
        self._monkeypatch.setattr(sys, "argv", ["tidemark", "--home", str(home), command, *given])
        with signals_kept():
            assert main() == status
        said = self._capsys.readouterr()
        assert (said.err == "") is (status == 0)
        return said.err if status else said.out


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


STEP = re.compile(r"(.*)(?:\[\1\] \(\d+ ms\) = \d+ ms|/\d+)", re.DOTALL)
"""Matches a physical path of one step, whose operator and task have one text here, and a partition of a source."""


def swapped(value: Any) -> Any:
    """Replaces corpus strings in *value* by harmless ones.

    Each string of the corpus that is all of a text in it, or of a step, is replaced.
    """
    match value:
        case str() if value in TEXTS:
            return HARMLESS[TEXTS.index(value)]
        case str() if (step := STEP.fullmatch(value)) and step[1] in TEXTS:
            return value.replace(step[1], swapped(step[1]))
        case bytes():
            return swapped(value.decode())
        case list() | tuple():
            return [swapped(of) for of in value]
        case dict():
            return {name: swapped(of) for name, of in value.items()}
        case _:
            return value


def plain(told: str, written: Callable[[str], str] = shown) -> str:
    """Removes spaces and replaces strings of the corpus by harmless ones.

    *written* gives a string of the corpus as the text has it.
    """
    told = "".join(told.split())
    for text, harmless in BY_SIZE:
        told = told.replace("".join(written(text).split()), harmless)
    return told


def unseen(told: str) -> set[str]:
    """Returns the characters that a terminal does not show.

    New lines are left out.
    """
    return {char for char in set(told) - {"\n"} if category(char)[0] == "C" or category(char) in {"Zl", "Zp"}}


def assert_inert(told: str) -> None:
    assert unseen(told) == set()
    assert not any(line.startswith(FORGED) for line in told.splitlines())


def texts_of(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns *rows* without numbers and instants.

    These may depend on the time of asking.
    """
    return sorted(
        repr([swapped(value) for value in row if not isinstance(value, int | float | datetime)]) for row in rows
    )


def test_the_corpus_has_only_strings_that_a_table_can_store() -> None:
    assert len(TEXTS) == len(set(TEXTS)) >= 20
    assert pa.array(TEXTS).to_pylist() == TEXTS


def test_tables_and_views_return_exactly_the_written_strings(homes: tuple[Path, Path]) -> None:
    hostile, harmless = (Warehouse(home / "warehouse") for home in homes)
    views = {name for (name,) in hostile.ask("SELECT view_name FROM duckdb_views WHERE NOT internal").rows}
    assert views >= TABLES.keys() | {"latest_state", "incident_history", "kafka_metrics", "sla_history"}
    for name in sorted(views):
        text = f'FROM "{name}"'
        assert texts_of(hostile.ask(text).rows) == texts_of(harmless.ask(text).rows), name


def test_a_parameter_of_a_query_matches_literally(homes: tuple[Path, Path]) -> None:
    tables = Warehouse(homes[0] / "warehouse")
    for n, text in enumerate(TEXTS):
        assert tables.ask("SELECT verdict, budget_left FROM incidents WHERE owner = ?", [text]).rows == (
            ("error", n + 1.5),
        )


COMMANDS = [
    ("incidents", "many"),
    ("incidents", "many", "--all"),
    ("incidents", "many", "--history", HARMLESS[0]),
    ("path", "many", "--last", "100"),
    ("topology", "many", "--at", "2026-01-01T13:00Z"),
    ("tables",),
    ("sql", "SELECT owner, message, culprit FROM incidents ORDER BY opened_at"),
    ("sql", "SELECT key, state, headers FROM state_changes WHERE kind = 'held_record' ORDER BY timestamp"),
    ("sql", "SELECT topic, reason, value FROM quarantine ORDER BY partition"),
]


@pytest.mark.parametrize("arguments", [*COMMANDS[:7], COMMANDS[8]], ids=lambda arguments: " ".join(arguments[:3]))
def test_commands_treat_the_corpus_like_harmless_words(
    homes: tuple[Path, Path], terminal: Terminal, arguments: tuple[str, ...]
) -> None:
    of_hostile = [TEXTS[0] if argument == HARMLESS[0] else argument for argument in arguments]
    hostile, harmless = terminal(homes[0], *of_hostile), terminal(homes[1], *arguments)
    assert_inert(hostile)
    if arguments[0] != "path":  # which breaks lines that are too long
        assert len(hostile.splitlines()) == len(harmless.splitlines())
    if arguments[0] != "tables":  # in which text is what takes bytes
        assert plain(hostile) == plain(harmless)


@pytest.mark.parametrize("arguments", [*COMMANDS[:5], *COMMANDS[6:]], ids=lambda arguments: " ".join(arguments[:3]))
def test_json_output_returns_every_string(
    homes: tuple[Path, Path], terminal: Terminal, arguments: tuple[str, ...]
) -> None:
    of_hostile = [TEXTS[0] if argument == HARMLESS[0] else argument for argument in arguments]
    hostile, harmless = (
        terminal(homes[0], *of_hostile, "--format", "json"),
        terminal(homes[1], *arguments, "--format", "json"),
    )
    assert_inert(hostile)
    assert swapped(json.loads(hostile)) == json.loads(harmless)


def test_csv_of_a_query_is_exact_and_that_of_incidents_inert(homes: tuple[Path, Path], terminal: Terminal) -> None:
    query = "SELECT message, owner FROM incidents ORDER BY opened_at"
    exact = terminal(homes[0], "sql", query, "--format", "csv").removesuffix("\n")
    assert [*csv.reader(io.StringIO(exact, newline=""))][1:] == [[text, text] for text in TEXTS]
    told = terminal(homes[0], "incidents", "many", "--format", "csv")
    assert unseen(told) == set()
    found = [*csv.DictReader(io.StringIO(told))]
    assert [shown(row["message"]) for row in found] == [shown(text) for text in TEXTS]


def test_columns_stay_aligned_with_hostile_cells_and_headings(homes: tuple[Path, Path], terminal: Terminal) -> None:
    query = "SELECT message, 'END' AS \"LAST\" FROM incidents ORDER BY opened_at"
    heading, *lines = terminal(homes[0], "sql", query).splitlines()
    assert len(lines) == len(TEXTS)
    assert {line.index("END") for line in lines} == {heading.index("LAST")}
    names = [text for text in TEXTS if "\0" not in text]  # which ends a statement
    query = ", ".join('1 AS "{}"'.format(text.replace('"', '""')) for text in names)
    told = terminal(homes[0], "sql", f"SELECT {query}")
    assert_inert(told)
    assert len(told.splitlines()) == 2
    assert told.splitlines()[0].split() == " ".join(map(shown, names)).split()


def test_the_reason_of_a_driver_is_one_line_of_why(tmp_path: Path, terminal: Terminal) -> None:
    for home, texts in ((tmp_path / "hostile", TEXTS), (tmp_path / "harmless", HARMLESS)):
        for n, text in enumerate(texts):
            path = Layout(home / "warehouse").stream_table("many", f"s{n}", HEARTBEATS.name)
            write_deltalake(path, rows_of(HEARTBEATS, [planted(HEARTBEATS, n, text)]))
        (home / "many.toml").write_text(many())
    said, usual = (terminal(tmp_path / name, "why", "many") for name in ("hostile", "harmless"))
    assert_inert(said)
    assert len(said.splitlines()) == len(TEXTS)
    # Remedies name the state folder.
    assert plain(said.replace(str(tmp_path / "hostile"), "")) == plain(usual.replace(str(tmp_path / "harmless"), ""))
    told = json.loads(terminal(tmp_path / "hostile", "why", "many", "--format", "json"))
    assert [row["seen"] for row in told] == [f"the driver of s{n} failed: {text}" for n, text in enumerate(TEXTS)]


def test_hostile_names_of_drivers_are_one_line_of_topology(tmp_path: Path, terminal: Terminal) -> None:
    for home, texts in ((tmp_path / "hostile", TEXTS), (tmp_path / "harmless", HARMLESS)):
        layout, rows = Layout(home / "warehouse"), [planted(HEARTBEATS, n, text) for n, text in enumerate(texts)]
        beats = [row | {"state": text} for row, text in zip(rows, texts, strict=True)]
        write_deltalake(layout.stream_table("many", "s0", HEARTBEATS.name), rows_of(HEARTBEATS, beats))
        window = {"window_end": NOON, "window_start": NOON - 5_000}
        walked = [planted(CRITICAL_PATH_STEPS, n, text) | window | {"step": n} for n, text in enumerate(texts)]
        for table, of in ((CRITICAL_PATHS, [planted(CRITICAL_PATHS, 0, "x") | window]), (CRITICAL_PATH_STEPS, walked)):
            write_deltalake(layout.report_table("many", table.name), rows_of(table, of))
        (home / "many.toml").write_text(many())
    said, usual = (terminal(tmp_path / name, "topology", "many") for name in ("hostile", "harmless"))
    assert_inert(said)
    assert len(said.splitlines()) == len(usual.splitlines())
    # Before it: the instant of asking, from which the age of the path follows.
    of_rest = [re.sub(r"[\d,]+sago", "", plain(text).partition("windows")[2]) for text in (said, usual)]
    assert of_rest[0] == of_rest[1]


def test_an_error_is_one_message_whatever_it_names(homes: tuple[Path, Path], terminal: Terminal) -> None:
    for text in TEXTS:
        told = terminal(homes[0], "incidents", "many", "--acknowledge", text + " of nobody", status=1)
        assert_inert(told)
        first, *others = told.splitlines()
        assert first.startswith("tidemark incidents: incident ")
        assert all(line.startswith("  ") for line in others)
    of_a_value = terminal(homes[0], "sql", f"SELECT '{HOSTILE['log line']}'::INT", status=1)
    assert all(line.startswith("  ") for line in of_a_value.splitlines()[1:])


def test_the_report_of_a_run_adds_no_extra_line(homes: tuple[Path, Path]) -> None:
    hostile, harmless = (summary(home / "warehouse").splitlines() for home in homes)
    headings = [[line for line in lines if not line.startswith(" ")] for lines in (hostile, harmless)]
    assert headings[0] == headings[1]


NOTES = NEWEST_SENT.replace("v int", "v int, note string").replace('["v"]', '["v", "note"]')


def test_values_of_records_reach_tables_and_topics_unchanged(tmp_path: Path) -> None:
    play = Play(NOTES, tmp_path)
    headers = [{"key": text, "value": text.encode()} for text in TEXTS]
    bad = [
        {"source": "events", "partition": 0, "offset": play.row("events", NOON)["offset"], "reason": "malformed_json"}
        | {"key": text.encode(), "value": text.encode()}
        for text in TEXTS
    ]
    for v in (1, 2):  # the second replaces the first, key by key
        rows = [
            play.row("events", NOON + v, key=text, id=text, note=text, v=v) | {"headers": headers} for text in TEXTS
        ]
        play.batch([*rows, *bad], at_ms=NOON + v * 1_000)
        bad = []
    tables = Warehouse(tmp_path)
    assert set(tables.ask("SELECT id, note, v FROM board").rows) == {(text, text, 2) for text in TEXTS}
    changed = tables.ask("SELECT key, value FROM changes WHERE json_extract(value, '$.v') = '2'").rows
    assert {(key, json.loads(value)["note"]) for key, value in changed} == {(text, text) for text in TEXTS}
    unusable = tables.ask("SELECT key, value FROM quarantine").rows
    assert set(unusable) == {(text.encode(), text.encode()) for text in TEXTS}
    sent = [row for topic, row in play.broker.published if topic == "out"][-len(TEXTS) :]
    assert sorted(row["note"] for row in sent) == sorted(TEXTS)
    assert [row["_key"] for row in sent] == [row["note"] for row in sent]
    assert all(row["_headers"] == headers for row in sent)


def test_an_acknowledgement_changes_only_its_own_incident(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    rows = [planted(INCIDENTS, n, text) for n, text in enumerate(TEXTS)]
    write_deltalake(layout.report_table("many", INCIDENTS.name), rows_of(INCIDENTS, rows))
    for text in TEXTS:
        assert acknowledge(layout, "many", text, by=text, note=text, at_ms=NOON) is None
    asked = "SELECT incident, decided_by, message FROM incidents WHERE change = '{}'"
    changed, opened = (Warehouse(tmp_path).ask(asked.format(change)).rows for change in ("acknowledged", "opened"))
    assert sorted(changed) == sorted((text, text, text) for text in TEXTS)
    assert len(opened) == len(TEXTS)


class Elements(HTMLParser):
    """Structure of HTML *text*: elements with attribute names, links, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, ...]] = []
        self.links: set[str | None] = set()
        self.said = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, *(name for name, _ in attrs)))
        self.links |= {value for name, value in attrs if name in {"href", "src", "action", "xlink:href"}}

    def handle_data(self, data: str) -> None:
        self.said += data

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", data))


def test_a_page_of_an_interval_has_no_hostile_elements(homes: tuple[Path, Path]) -> None:
    topology = parse(tomllib.loads(many()), file="many.toml")
    interval = Interval(NOON, NOON + 3_600_000)
    hostile, harmless = (page(page_facts(Warehouse(home / "warehouse"), topology, interval)) for home in homes)
    assert unseen(hostile) == set()
    found, usual = Elements(hostile), Elements(harmless)
    assert set(found.elements) == set(usual.elements)
    assert found.links == usual.links
    assert [name for name in found.elements if name[0] in {"tr", "th", "td", "p", "svg", "title", "desc"}] == [
        name for name in usual.elements if name[0] in {"tr", "th", "td", "p", "svg", "title", "desc"}
    ]
    told = [text for text in TEXTS if shown(text).replace(r"\n", "\n") in found.said]  # a new line is a space there
    assert told == TEXTS  # blame has every operator


def test_the_page_of_incidents_has_no_hostile_elements(homes: tuple[Path, Path]) -> None:
    hostile, harmless = (sla_page(home / "warehouse", "many") for home in homes)
    assert unseen(hostile) == set()
    found, usual = Elements(hostile), Elements(harmless)
    assert (found.elements, found.links) == (usual.elements, usual.links)
    assert [text for text in TEXTS if shown(text).replace(r"\n", "\n") in found.said] == TEXTS


@pytest.mark.parametrize("start", range(0, len(TEXTS), charts.MOST))
def test_charts_draw_names_as_text(start: int) -> None:
    interval = Interval(NOON, NOON + 60_000)

    def drawn(texts: Sequence[str]) -> Elements:
        measured = {"n": 9, "p50_ms": 1.0, "p90_ms": 3.0, "p99_ms": 9.0, "max_ms": 9, "sla_ms": 8, "at_ms": NOON}
        rows = [{"operator": shown(text), **measured, "emitted": 7, "suppressed": 3} for text in texts]
        lags = [{"source": shown(text), "partition": 0, "at_ms": NOON, "lag_ms": 5} for text in texts]
        spans = [{**lag, "activity": "idle", "until_ms": NOON + 9_000} for lag in lags]
        return Elements(
            charts.latency_bands(rows, interval, 60_000)
            + charts.emission(rows, interval, 1_000)
            + charts.watermark_lag(lags, spans, interval)
        )

    hostile = drawn(TEXTS[start : start + charts.MOST])
    harmless = drawn(HARMLESS[start : start + charts.MOST])
    assert sorted(set(hostile.elements)) == sorted(set(harmless.elements))
    assert hostile.links == harmless.links


def due_of(row: dict[str, Any]) -> DueAlert:
    """The alert of an incident alone."""
    return DueAlert(alert=alert_of(event_of(IncidentChange, row)))


def test_a_message_links_only_to_its_page_and_states_the_budget() -> None:
    row = planted(INCIDENTS, 0, HARMLESS[0]) | {"change": "opened", "message": "Look here: https://other.example.org"}
    link = "https://a.example.org/?b&c"
    spent = (due_of(row | {"budget_left": left}) for left in (0.12, -999))
    told = [alert_texts(message_of(of, link=link, operator_link=f"{link}&d"), notified_ms=NOON) for of in spent]

    assert [Elements(of["html"]).links for of in told] == [{link, f"{link}&d"}] * 2
    assert "Error budget left: 12 %\n" in told[0]["text"]
    assert "Error budget left: none, 1,000.0 times the budget was spent\n" in told[1]["text"]


@pytest.mark.parametrize("change", [*Change])
def test_a_message_has_no_lines_or_headers_from_hostile_words(change: Change) -> None:
    for n, (text, harmless) in enumerate(zip(TEXTS, HARMLESS, strict=True)):
        rows = [planted(INCIDENTS, n, of) | {"change": change.value, "topology": of} for of in (text, harmless)]
        alerts = [message_of(due_of(row), link="https://airflow.example.org/") for row in rows]
        told, usual = (alert_texts(alert, notified_ms=NOON) for alert in alerts)
        for name in ("subject", "text"):
            assert unseen(told[name]) == set()
            assert len(told[name].splitlines()) == len(usual[name].splitlines())
        found, expected = Elements(told["html"]), Elements(usual["html"])
        assert (found.elements, found.links) == (expected.elements, expected.links)
        assert found.said.replace("\n", "") == told["text"].replace("\n", "")
        assert not {"<", ">"} & set(told["slack"])
        assert unescape(told["slack"]) == "*{}*\n{}".format(*told["text"].split("\n", 1))
        mail = EmailMessage()
        mail["Subject"], mail["Message-ID"] = told["subject"], told["message_id"]
        assert mail.keys() == ["Subject", "Message-ID"]
        assert mail["Subject"] == told["subject"]
        assert "{{" in told["text"] or "{{" not in text  # nothing has run it


LOGS = """
import json, logging, sys
from tidemark.safe_text import log_to_stderr
log_to_stderr()
log = logging.getLogger("tidemark.stream")
for text in json.load(sys.stdin):
    log.warning("%s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("stream %s failed", text)
"""


def test_hostile_words_cannot_forge_a_line_of_the_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    assert_inert(done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("  ")]
    assert [line.split(" ")[2] for line in lines] == ["WARNING", "ERROR"] * len(TEXTS)
    jobs = Path(topology_named.__code__.co_filename).parents[2]
    assert [file.name for file in jobs.rglob("*.py") if "basicConfig(" in file.read_text()] == ["safe_text.py"]


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda text: {"name": text},
    "level": lambda text: {"level": text},
    "window": lambda text: {"window": text},
    "a key": lambda text: {text: 1},
    "retention": lambda text: {"retention": {text: text}},
    "spark": lambda text: {"spark": {"master": text}},
    "spark.conf": lambda text: {"spark": {"conf": {text: "1"}}},
    "an operator": lambda text: {"operators": {text: {"kind": "source"}}},
    **{
        f"operators.newest.{key}": lambda text, key=key: {"operators": {"newest": {key: text}}}  # type: ignore[misc]
        for key in ("kind", "input", "sub_topology", "strategy", "rule")
    },
    "a key of an operator": lambda text: {"operators": {"newest": {text: text}}},
    **{
        f"operators.events.{key}": lambda text, key=key: {"operators": {"events": {key: text}}}  # type: ignore[misc]
        for key in ("fields", "timestamp", "bound", "timestamp_unit", "format")
    },
    "operators.board.table": lambda text: {"operators": {"board": {"table": text}}},
    "operators.board.mode": lambda text: {"operators": {"board": {"mode": text}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_each_mistake_of_a_topology_with_a_hostile_name_is_one_line(place: str) -> None:
    for text in TEXTS:
        content = tomllib.loads(NEWEST_SENT)
        planted_here = PLACES[place](text)
        for name, of in planted_here.pop("operators", {}).items():
            content["operators"].setdefault(name, {}).update(of)
        with pytest.raises(InvalidSpec) as refused:
            parse(content | planted_here, file="play.toml")
        assert_inert(str(refused.value))
        for line in str(refused.value).splitlines():
            assert line.startswith("play.toml: ")
            assert "; " in line


def test_slas_and_channels_of_hostile_names_fail_in_one_line() -> None:
    topology = parse(tomllib.loads(NEWEST_SENT), file="play.toml")
    sla = {"subject": "board", "error_after": "1 min", "owner": "desk"}
    for text in TEXTS:
        for content in ({text: sla}, {"late": {**sla, text: 1}}, {"late": {**sla, "subject": text}},
                        {"late": {**sla, "severity": text}}, {"late": {**sla, "error_after": text}}):  # fmt: skip
            with pytest.raises(InvalidSpec) as refused:
                sla_spec.parse({"play": content}, topology, file="slas.toml")
            assert_inert(str(refused.value))
            assert len(str(refused.value).splitlines()) == 1
        for channels in ({text: {"kind": "slack"}}, {"desk": {"kind": text}}, {"desk": {"kind": "slack", text: 1}}):
            with pytest.raises(InvalidSpec) as refused:
                channel_spec.parse(channels, file="channels.toml")
            assert_inert(str(refused.value))
            assert len(str(refused.value).splitlines()) == 1


def files_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_name_outside_of_the_warehouse_creates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], terminal: Terminal
) -> None:
    home = tmp_path / "a" / "b" / "c"
    home.mkdir(parents=True)
    before = files_in(tmp_path)
    lost = ("--source", "events", "--partition", "0", "--until", "1", "--by", "Ann", "--reason", "gone")
    for text in (*TEXTS[:-1], "..", ".", "a/../../x", ""):
        for arguments in (
            ("requeue", text, "--dry-run"),
            ("accept-loss", text, "0", *lost),
            ("accept-loss", "t", text, *lost),
        ):
            with pytest.raises(SystemExit):
                terminal(home, *arguments)
            capsys.readouterr()
        with pytest.raises(InvalidArgument, match="there is no topology "):
            topology_named(text)
    assert files_in(tmp_path) == before


def test_files_and_folders_of_hostile_names_print_as_one_line(tmp_path: Path, terminal: Terminal) -> None:
    names = [text for text in TEXTS if "/" not in text and "\0" not in text and len(text.encode()) < 200]
    for text in names:
        file = tmp_path / f"x{text}.toml"
        file.write_text(NEWEST_SENT)
        told = terminal(tmp_path, "check", str(file))
        assert_inert(told)
        line, *others = told.splitlines()
        warnings = [other for other in others if ": warning: " in other or ": note: " in other]
        assert line == f"{shown(file.name)}: play/events: events, newest, board, out"
        assert len(warnings) == 2, warnings  # of the order of arrival at `newest`, and of what `out` reads
        file.write_text("name = [")
        refused = terminal(tmp_path, "check", str(file), status=1)
        assert_inert(refused)
        assert len(refused.splitlines()) == 1
    table = 'x" AS SELECT 1; CREATE TABLE owned AS SELECT 1; --'
    path = Layout(tmp_path / "warehouse").stream_table("play", "events", table)
    write_deltalake(path, pa.table({"a": [7]}))
    warehouse = Warehouse(tmp_path / "warehouse")
    assert warehouse.ask('FROM "{}"'.format(table.replace('"', '""'))).rows == ((7,),)
    with pytest.raises(InvalidArgument, match="owned does not exist"):
        warehouse.ask("FROM owned")
