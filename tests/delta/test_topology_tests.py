"""`tidemark test` runs topologies in memory, and tells what came out otherwise than expected."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.command_line import tidemark
from support.play import Play
from tidemark.cli.project.init import init
from tidemark.cli.project.test import run_file
from tidemark.selection import index_by_name
from tidemark.testing.rows import rows_of_arrival

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
CLICKS = """
name = "clicks"
[operators.clicks]
kind = "source"
topic = "clicks"
key = "visitor"
fields = "visitor string, page string, amount double, at bigint"
timestamp = "at"
bound = "5 s"
idle_after = "30 s"
idle_advances = true

[operators.newest]
kind = "table"
input = "clicks"
key = ["visitor"]
columns = ["page"]
newest_by = "event_time"

[operators.board]
kind = "sink"
input = "newest"
table = "board"
mode = "current"
key = ["visitor"]

[operators.per_minute]
kind = "aggregate"
input = "clicks"
key = ["page"]
window = { tumbling = "1 min" }
strategy = "on_window_close"
aggregates = { n = "count(*)", amount = "sum(amount)" }

[operators.minutes]
kind = "sink"
input = "per_minute"
topic = "minutes"
"""
"""Clicks of visitors: the page of each, and clicks per page and minute."""
START = "2026-01-01T12:00:00Z"
AIRPORTS = """
name = "airports"
[operators.flights]
kind = "source"
delta = "raw/flights"
fields = "flight string, origin string, at timestamp, delay decimal(6,2)"
timestamp = "at"
bound = "0 s"

[operators.long]
kind = "map"
input = "flights"
select = { flight = "flight", origin = "origin", delay = "delay" }
where = "delay >= 10"

[operators.with_city]
kind = "join"
input = "long"
delta = "reference/airports"
on = { origin = "faa" }

[operators.by_city]
kind = "repartition"
input = "with_city"
key = ["city"]
columns = ["delay"]

[operators.per_city]
kind = "aggregate"
sub_topology = "cities"
input = "by_city"
aggregates = { n = "count(*)", delay = "sum(delay)" }

[operators.cities]
kind = "sink"
input = "per_city"
table = "cities"
"""
"""Rows of a table, joined to another table, in two streams."""


def project(folder: Path, topology: str, tests: str) -> Path:
    """Makes a project with a *topology* and its file of *tests*; returns the folder."""
    made = init(folder / "mine")
    name = tomllib.loads(topology)["name"]
    (made.topologies / f"{name}.toml").write_text(topology)
    (made.topologies / "tests" / f"{name}.toml").write_text(tests)
    return made.folder


def one(given: str, expect: str, more: str = "") -> str:
    return f'[[test]]\nname = "one"\nstart = "{START}"\n{more}\n{given}\n{expect}'


def given(*records: str, source: str = "clicks", at: str = "") -> str:
    when = f'at = "{at}"\n' if at else ""
    return f'[[test.given]]\nsource = "{source}"\n{when}records = [{", ".join(records)}]\n'


def click(at: str, visitor: str, page: str | None, amount: float = 1.0, partition: int = 0) -> str:
    value = f', value = {{ page = "{page}", amount = {amount} }}' if page else ""
    return f'{{ timestamp = "{at}", key = "{visitor}", partition = {partition}{value} }}'


def expect(operator: str, **of: Any) -> str:
    lines = [f"{key} = {value}" for key, value in of.items()]
    return "\n".join(["[[test.expect]]", f'operator = "{operator}"', *lines, ""])


IN_MEMORY = {
    "a window is sent when the watermark has passed its end": one(
        given(click("10 s", "a", "/", 2.0), click("50 s", "b", "/", 0.5), click("1 min", "a", "/shop")),
        expect("minutes", rows="[]"),
    ),
    "it is sent by the batch that passes it, with the watermark 5 s behind": one(
        given(click("10 s", "a", "/", 2.0), click("50 s", "b", "/", 0.5), click("65 s", "a", "/shop"))
        + given(click("66 s", "a", "/shop")),
        expect("minutes", rows='[{ page = "/", n = 2, amount = 2.5, window_start = "0 s", decided_at = "65 s" }]')
        + expect("per_minute", counts="{ records_in = 4, emitted = 1, superseded = 2, held_after = 1, late = 0 }"),
    ),
    "a record behind it is late": one(
        given(click("10 s", "a", "/")) + given(click("65 s", "a", "/shop")) + given(click("20 s", "b", "/"), at="70 s"),
        expect("dead_letters", rows='[{ kind = "late", operator = "per_minute", timestamp = "20 s" }]')
        + expect("per_minute", counts="{ late = 1 }"),
    ),
    "silence ends a window: the partition is idle after 30 s": one(
        given(click("10 s", "a", "/"), click("58 s", "b", "/")),
        expect("minutes", rows='[{ page = "/", n = 2 }]'),
        'until = "10 min"',
    ),
    "what is due between two arrivals happens then: partition 1 is idle more than 30 s after its record": one(
        given(click("10 s", "a", "/"), click("45 s", "b", "/", partition=1))
        + given(click("70 s", "a", "/shop"))
        + given(click("80 s", "a", "/shop")),
        expect("minutes", rows='[{ page = "/", n = 2, decided_at = "75001 ms" }]'),
    ),
    "a topic has no more partitions than the test names": one(
        given(click("-50 s", "a", "/"), click("6 s", "a", "/shop")),
        expect("minutes", rows='[{ page = "/", window_start = "-1 min", decided_at = "6 s" }]'),
    ),
    "a value keeps its own time": one(
        given(
            '{ timestamp = "1 s", value = { page = "/", at = 1767268802000 } }',
            '{ timestamp = "3 s", value = { page = "/" } }',
        ),
        expect("clicks", rows='[{ at = 1767268802000, timestamp = "2 s" }, { at = 1767268803000, timestamp = "3 s" }]'),
    ),
    "a key may have a time": one(
        given('{ key = { visitor = "a", at = 2026-01-01T12:00:00Z }, timestamp = "1 s", value = { page = "/" } }'),
        expect("clicks", counts="{ records_in = 1, passed = 1 }"),
    ),
    "a slow partition holds windows back": one(
        given(click("10 s", "a", "/"), click("11 s", "b", "/", partition=1), click("80 s", "a", "/")),
        expect("minutes", rows="[]"),
    ),
    "a record without a value deletes its key": one(
        given(click("1 s", "a", "/"), click("1 s", "b", "/")) + given(click("2 s", "a", None)),
        expect("board", current='[{ visitor = "b", page = "/" }]')
        + expect(
            "newest",
            rows='[\'{"visitor": "a", "page": "/", "deleted": false}\', '
            '\'{"visitor": "a", "page": null, "deleted": true}\', \'{"visitor": "b", "page": "/", "deleted": false}\']',
        ),
    ),
    "an update that changes nothing is suppressed, and an older one is superseded": one(
        given(click("10 s", "a", "/")) + given(click("11 s", "a", "/")) + given(click("5 s", "a", "/old"), at="12 s"),
        expect(
            "newest",
            rows='[{ page = "/", timestamp = "10 s" }]',
            counts="{ emitted = 1, suppressed = 1, superseded = 1 }",
        ),
    ),
    "a record that cannot be read is quarantined": one(
        given("{ value = '{\"page\"' }", '{ value = \'{"amount": "x"}\' }', '{ key = "a", value = { page = "/" } }'),
        expect(
            "dead_letters",
            rows='[{ reason = "malformed_json" }, { reason = "wrong_type" }, { reason = "missing_timestamp" }]',
        )
        + expect("clicks", counts="{ records_in = 3, quarantined = 3, passed = 0 }"),
    ),
}
OF_TABLES = one(
    given(
        '{ value = { flight = "UA1", origin = "JFK", at = 2026-01-01T12:00:01Z, delay = "12.50" } }',
        '{ timestamp = "2 s", value = { flight = "UA2", origin = "LGA", delay = "10.25" } }',
        '{ timestamp = "3 s", value = { flight = "UA3", origin = "JFK", delay = "9.99" } }',
        '{ timestamp = "4 s", value = { flight = "UA4", origin = "BOS", delay = "20.00" } }',
        source="flights",
    )
    + '[[test.given]]\ndelta = "reference/airports"\n'
    'rows = [{ faa = "JFK", city = "New York" }, { faa = "LGA", city = "New York" }]\n',
    expect("long", counts="{ filtered = 1 }")
    + expect(
        "with_city",
        rows='[\'{"flight": "UA1", "city": "New York"}\', \'{"flight": "UA2", "city": "New York"}\', '
        '\'{"flight": "UA4", "city": null}\']',
    )
    + expect("by_city", rows='[{ city = "New York", delay = 12.5 }, { city = "New York", delay = "10.25" }]')
    + expect(
        "cities", rows='[{ city = "New York", n = 1, delay = "12.50" }, { city = "New York", n = 2, delay = 22.75 }]'
    )
    + expect("per_city", current='[{ city = "New York", n = 2 }]')
    + expect("dead_letters", rows='[{ operator = "by_city", reason = "null_key" }]'),
)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_clicks(name: str, tmp_path: Path) -> None:
    done = tidemark(project(tmp_path, CLICKS, IN_MEMORY[name]), "test")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("passed  clicks.toml: one\n1 test: 1 passed, 0 failed (")


MORE = """
[operators.orders]
kind = "source"
topics = ["orders_eu", "orders_us"]
format = "avro"
schema = "orders.avsc"
fields = "id string, at timestamp, note string"
timestamp = "at"
bound = "0 s"
idle_after = "30 s"

[operators.newest]
kind = "table"
input = "orders"
key = ["id"]
columns = ["note"]
newest_by = "event_time"

[operators.seen]
kind = "sink"
input = "newest"
table = "seen"
mode = "current"
key = ["id"]
last_seen_at = true
"""


def test_avro_of_several_topics_microseconds_and_rows_that_are_only_seen_again(tmp_path: Path) -> None:
    noted = '{ timestamp = "1 s", partition = 1, value = { id = "a", note = "x" } }'
    exact = "{ value = { id = 'a', at = 2026-01-01T12:00:02.000001Z, note = 'x' } }"
    tests = one(
        given(noted, source="orders") + given(exact, "{ value = 'no Avro' }", source="orders"),
        expect("seen", current='[{ id = "a", note = "x", timestamp = "1 s" }]', rows='[{ note = "x" }]')
        + expect("newest", counts="{ emitted = 1, suppressed = 1 }")
        + expect("orders", rows='[{ at = 2026-01-01T12:00:01Z }, { at = "2026-01-01T12:00:02.000001Z" }]')
        + expect("dead_letters", rows='[{ operator = "orders", reason = "malformed_avro", partition = 0 }]'),
    )
    folder = project(tmp_path, f'name = "shop"\n{MORE}', tests)
    fields = [{"name": "id", "type": "string"}, {"name": "note", "type": ["null", "string"]}]
    at = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
    schema = {"type": "record", "name": "order", "fields": [*fields, at]}
    (folder / "topologies" / "orders.avsc").write_text(json.dumps(schema))
    done = tidemark(folder, "test")
    assert (done.returncode, done.stderr) == (0, ""), done


def test_tests_are_named_by_their_topology_its_file_or_their_own(tmp_path: Path) -> None:
    folder = iot(tmp_path)
    more = folder / "topologies" / "tests" / "more" / "silence.toml"
    more.parent.mkdir()
    more.write_text('topology = "iot"\n[[test]]\nname = "nothing"\n')
    run = {
        name: [
            test["test"][:9] for test in json.loads(tidemark(folder, "test", "--json", *name.split()).stdout)["tests"]
        ]
        for name in ("iot", "topologies/iot.toml", "topologies/tests/more/silence.toml", "iot topologies/iot.toml")
    }
    both = ["a minute ", "a partiti", "nothing"]
    assert [*run.values()] == [both, both, ["nothing"], both]


def test_rows_of_tables_in_two_streams(tmp_path: Path) -> None:
    done = tidemark(project(tmp_path, AIRPORTS, OF_TABLES), "test", "airports")
    assert (done.returncode, done.stderr) == (0, ""), done


def iot(folder: Path, **changed: str) -> Path:
    """Makes a project with the recipe IoT and its tests, in which each name of *changed* is its value."""
    tests = (DOCS / "recipes" / "tests" / "iot.toml").read_text(encoding="utf-8")
    for one, other in changed.items():
        assert one in tests
        tests = tests.replace(one, other)
    return project(folder, (DOCS / "recipes" / "iot.toml").read_text(encoding="utf-8"), tests)


def without_time(text: str) -> str:
    return re.sub(r"\(\d+\.\d\d s\)", "(… s)", text)


def blocks(heading: str, form: str) -> list[str]:
    """The blocks of *form* under *heading* of the page."""
    page = (DOCS / "testing.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{form}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def test_the_page_shows_a_test_that_passes(tmp_path: Path) -> None:
    folder = iot(tmp_path)
    assert blocks("A test", "toml") == [(folder / "topologies" / "tests" / "iot.toml").read_text(encoding="utf-8")]
    assert tidemark(folder, "test").returncode == 0


def test_the_page_shows_a_failure_and_a_mistake(tmp_path: Path) -> None:
    failure, mistake = blocks("A test that fails", "")
    failed = tidemark(iot(tmp_path / "1", **{"warmest_c = 22.0": "warmest_c = 30.0"}), "test")
    assert (failed.returncode, without_time(failed.stdout), failed.stderr) == (1, without_time(failure), "")
    refused = tidemark(iot(tmp_path / "2", warmest_c="warmst_c", **{'"sensors"': '"sensor"'}), "test")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "tidemark test: " + mistake.rstrip("\n").replace("\n", "\n  ") + "\n"


def test_the_tests_of_the_demo_pass() -> None:
    done = tidemark(PROJECT, "test", "flights", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["passed"], told["failed"]) == (0, 2, 0)


def test_a_row_that_is_not_expected_is_a_difference(tmp_path: Path) -> None:
    tests = one(given(click("1 s", "a", "/")), expect("clicks", rows="[]") + expect("board", current="[]"))
    done = tidemark(project(tmp_path, CLICKS, tests), "test")
    assert (done.returncode, without_time(done.stdout)) == (
        1,
        "FAILED  clicks.toml: one\n"
        "  clicks: other rows than expected (-), seen (+)\n"
        "     visitor  page  amount  at\n"
        "  +  a        /     1.0     1767268801000\n"
        "  board: other current rows than expected (-), seen (+)\n"
        "     visitor  page\n"
        "  +  a        /\n"
        "1 test: 0 passed, 1 failed (… s)\n",
    )


def test_a_difference_is_told_in_json(tmp_path: Path) -> None:
    done = tidemark(iot(tmp_path, **{"temp_c = 21.0 }]": "temp_c = 20.0 }]"}), "test", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["passed"], told["failed"]) == (1, 1, 1)
    assert told["tests"][0]["differences"] == [
        {
            "operator": "sensors",
            "what": "current",
            "expected": [{"sensor": "a", "temp_c": 20.0}],
            "seen": [{"sensor": "a", "temp_c": 21.0}],
        }
    ]


MISTAKES = {
    "no TOML": ("[[test]", "clicks.toml: file: is not valid TOML: "),
    "an unknown key": ('topolgy = "clicks"', "clicks.toml: topolgy: is not a valid key here; did you mean topology?"),
    "an unknown topology": ('topology = "clikcs"', "clicks.toml: topology: is 'clikcs', which no file of "),
    "no name": ("[[test]]", 'clicks.toml: test[1].name: is missing; write name = "'),
    "one name twice": (
        'test = [{ name = "a" }, { name = "a" }]',
        "test[2].name: is 'a' twice; give each test a name of",
    ),
    "a start that is a length": (
        one("", "").replace(START, "5 s"),
        "test[1].start: is a length of time; write an inst",
    ),
    "no time": (one(given(at="soon"), ""), "test[1].given[1].at: is 'soon'; write an instant, or a length after"),
    "arrivals in another order": (
        one(given(at="5 s") + given(at="4 s"), ""),
        "given[2].at: is 2026-01-01T12:00:04.000Z, before 2026-01-01T12:00:05.000Z, when the one above",
    ),
    "an end before the last arrival": (
        one(given(click("95 s", "a", "/")), "", 'until = "1 min"'),
        "test[1].until: is 2026-01-01T12:01:00.000Z, before the last arrival at 2026-01-01T12:01:35.000Z; write",
    ),
    "neither source nor table": (one("[[test.given]]\n", ""), "test[1].given[1].source: is missing; write source = "),
    "an unknown source": (
        one(given(source="click"), ""),
        "given[1].source: is 'click', which is no source of clicks; did",
    ),
    "an unknown key of a record": (
        one(given("{ vlaue = {} }"), ""),
        "given[1].records[1].vlaue: is not a valid key here",
    ),
    "an unknown field": (
        one(given("{ value = { pgae = 1 } }"), ""),
        "given[1].records[1].value.pgae: is no field of clicks, and only a value in text may have others; did",
    ),
    "a table that no join looks up": (
        one('[[test.given]]\ndelta = "x"\nrows = []\n', ""),
        "test[1].given: has the rows of 'x', which no join looks up",
    ),
    "nothing expected": (one("", expect("board")), "test[1].expect[1].rows: is missing; write rows, current or counts"),
    "an unknown operator": (
        one("", expect("bord", rows="[]")),
        "expect[1].operator: is 'bord', which is no operator of c",
    ),
    "an unknown column": (
        one("", expect("board", rows="[{ vizitor = 1 }]")),
        "expect[1].rows.vizitor: is no column of board; did you mean visitor?",
    ),
    "a row that is none": (
        one("", expect("board", rows="[3]")),
        "expect[1].rows: has 3, which is no row; write rows = ",
    ),
    "current rows without a key": (
        one("", expect("clicks", current="[]")),
        "expect[1].current: is set, but clicks keeps no row by key; write rows",
    ),
    "an unknown count": (one("", expect("board", counts="{ lat = 1 }")), "expect[1].counts: is 'lat'; use one of "),
    "a count that is none": (
        one("", expect("board", counts="{ late = -1 }")),
        "expect[1].counts.late: is -1; write a w",
    ),
    "counts of records that did not go on": (
        one("", expect("dead_letters", counts="{ late = 1 }")),
        "expect[1].counts: is set, but counts are those of operators",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_place_and_remedy(name: str, tmp_path: Path) -> None:
    tests, told = MISTAKES[name]
    done = tidemark(project(tmp_path, CLICKS, tests), "test")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("tidemark test: clicks.toml: ")
    assert told in done.stderr


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    tests = one(
        given('{ value = { pgae = "/" } }'),
        expect("bord", rows="[]") + expect("board", rows="[{ pag = 1 }, { vizitor = 2 }]"),
    )
    done = tidemark(project(tmp_path, CLICKS, tests), "test")
    assert re.findall(r"did you mean \w+", done.stderr) == [
        "did you mean page", "did you mean board", "did you mean page", "did you mean visitor"
    ]  # fmt: skip


def test_accepting_writes_what_was_seen_and_keeps_the_rest(tmp_path: Path) -> None:
    head = f'# Clicks.\n[[test]]\nname = "one"  # the first\nstart = "{START}"\n'
    clicks = given(click("10 s", "a", "it's", 2.0), click("65 s", "a", "/shop"))
    second = '\n# Another.\n[[test]]\nname = "two"\n' + given(click("1 s", "b", "/")) + "\n"
    kept = expect("board", current='[{ visitor = "b" }]')
    folder = project(
        tmp_path,
        CLICKS,
        head + clicks + expect("minutes", rows='[{ page = "x" }]', counts="{ late = 3 }") + second + kept,
    )
    file = folder / "topologies" / "tests" / "clicks.toml"
    done = tidemark(folder, "test", "--accept")
    assert (done.returncode, done.stdout) == (0, f"wrote {file}\n")
    written = expect("minutes", rows='[\n  { page = "it\'s" },\n]', counts="{ late = 0 }")
    assert file.read_text() == f"{head}{clicks}\n{written}{second}{kept}"
    assert tidemark(folder, "test").returncode == 0
    assert tidemark(folder, "test", "--accept").stdout == ""


def test_accepting_begins_with_the_sinks(tmp_path: Path) -> None:
    tests = f'[[test]]\nname = "one"\nstart = "{START}"\n' + given(click("2 s", "a", "/"), '{ value = "x" }')
    folder = project(tmp_path, CLICKS, tests)
    assert tidemark(folder, "test", "--accept").returncode == 0
    content = tomllib.loads((folder / "topologies" / "tests" / "clicks.toml").read_text())
    assert content["test"][0]["expect"] == [
        {"operator": "board", "rows": [{"visitor": "a", "page": "/"}]},
        {"operator": "minutes", "rows": []},
        {
            "operator": "dead_letters",
            "rows": ['{"kind": "quarantined", "operator": "clicks", "reason": "malformed_json", "key": null}'],
        },
    ]
    assert tidemark(folder, "test").returncode == 0


def test_what_accepting_cannot_find_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    tests = f'test = [{{ name = "one", start = "{START}" }}]\n'
    folder = project(tmp_path, CLICKS, tests)
    done = tidemark(folder, "test", "--accept")
    assert (done.returncode, (folder / "topologies" / "tests" / "clicks.toml").read_text()) == (1, tests)
    assert "clicks.toml: test: is not written in sections; write each test as [[test]]" in done.stderr


def test_a_project_without_tests_says_where_they_go(tmp_path: Path) -> None:
    folder = init(tmp_path / "mine").folder
    done = tidemark(folder, "test")
    assert (done.returncode, without_time(done.stdout)) == (
        0,
        f"{folder}/topologies/tests has no tests; write one into NAME.toml there (docs/testing.md)\n"
        "0 tests: 0 passed, 0 failed (… s)\n",
    )
    named = tidemark(folder, "test", "clicks")
    assert (named.returncode, "clicks: no file in " in named.stderr) == (1, True)


def test_the_example_of_a_new_project_passes(tmp_path: Path) -> None:
    made = init(tmp_path / "mine")
    pages = [made.topologies / "README.md", made.topologies / "tests" / "README.md"]
    topology, tests = (re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)[0] for page in pages)
    shutil.rmtree(made.folder)
    done = tidemark(project(tmp_path, topology, tests), "test")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "passed  readings.toml: a minute is written when it is over",
    )


def test_the_test_of_the_tutorial_passes(tmp_path: Path) -> None:
    page = (DOCS / "first-topology.md").read_text(encoding="utf-8")
    topology, tests = (
        re.search(rf"`topologies/{name}`.*?```toml\n(.*?)```", page, re.DOTALL)[1]  # type: ignore[index]
        for name in ("readings.toml", "tests/readings.toml")
    )
    done = tidemark(project(tmp_path, topology, tests), "test")
    assert (done.returncode, done.stdout.splitlines()[0]) == (
        0,
        "passed  readings.toml: a late reading does not replace a newer one",
    )


def test_a_stream_writes_the_rows_that_a_test_has_seen(tmp_path: Path) -> None:
    """The same records through the journal, tables and topics of the real engine."""
    file = PROJECT / "jobs" / "topologies" / "tests" / "flights.toml"
    topology, results = run_file(file)
    columns = ["flight", "status", "delay_min", "temp_f"]
    for test, outcome, _ in results:
        play = Play((file.parents[1] / "flights.toml").read_text(encoding="utf-8"), tmp_path / test.place)
        sources, offsets = index_by_name(topology.outside_sources), Counter[tuple[str, int]]()
        for arrival in test.arrivals:
            rows = rows_of_arrival(sources[arrival.source], arrival, offsets, test.start_ms)
            at_ms = rows["timestamp_ms"].max()
            assert isinstance(at_ms, int)
            play.batch(rows.to_dicts(), at_ms=at_ms)
            play.hop("carriers", at_ms=at_ms)
        written = [[row[name] for name in columns] for row in play.rows("flight_board")]
        assert written == [[row[name] for name in columns] for row in outcome.rows("flight_board")]
        sent = [(row["carrier"], row["delay_band"]) for _, row in play.broker.published]
        assert sent == [(row["carrier"], row["delay_band"]) for row in outcome.rows("carrier_delays")]
        dead = [(row["kind"], row["reason"]) for row in play.rows("dead_letters")]
        assert dead == [(row["kind"], row["reason"]) for row in outcome.rows("dead_letters")]
