"""A kind of an open list is one module, also in a package of a user that an entry point names."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from support.made_up import CHANNEL, COMMAND, FORMAT, MEASURE, OPERATOR, OWNER, SOURCE, installed, run_with
from support.topologies import operators, source, table, topology_of
from tidemark.account.owners.registry import OWNERS, Owner
from tidemark.model.measures.registry import MEASURES, Measure

pytestmark = pytest.mark.slow

TIDEMARK = "import sys; from tidemark.cli.main import main; sys.exit(main())"
SLA = """
[play.is_calm]
subject = "newest"
measure = "unchanged_updates"
error_above = 0
owner = "ann"
"""
KINDS = {Measure: MEASURES["records"], Owner: OWNERS["silence"]}
"""A kind of each list, by its type."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    modules = {"measures": MEASURE, "owners": OWNER, "commands": COMMAND}
    # Of a value with one field it returns text, and not bytes.
    forgetful = FORMAT.replace("return json", "return value.decode() if b';' not in value and b'=' in value else json")
    more = {"formats": forgetful, "channels": CHANNEL, "operators": OPERATOR, "sources": SOURCE}
    return installed(tmp_path_factory.mktemp("site"), modules | more)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an SLA of the made-up measure."""
    for name in ("topologies", "expectations"):
        (tmp_path / name).mkdir()
    newest = operators(newest=table(columns=["v"]))
    (tmp_path / "topologies" / "play.toml").write_text(topology_of({"name": "play"}, events=source()) + newest)
    (tmp_path / "expectations" / "slas.toml").write_text(SLA)
    return tmp_path


def test_a_made_up_measure_is_checked_and_in_the_schema(packages: Path, project: Path) -> None:
    run_with(packages, TIDEMARK, "check", folder=project)
    schema = json.loads(run_with(packages, TIDEMARK, "schema", "slas", folder=project))
    assert "unchanged_updates" in json.dumps(schema)
    with pytest.raises(AssertionError, match=r"measure: is 'unchanged_updates'; use one of burn_rate"):
        run_with(project / "nothing", TIDEMARK, "check", folder=project)


WITH_A_KEY = MEASURE.replace(
    "register(",
    """
from tidemark.model.measures.limits import Limits
from tidemark.model.settings import value_types
from tidemark.model.settings.declared_tables import required
from tidemark.semantics.sla import ChangeMaximums

BORING = required("boring_above", value_types.count(), example="3", meaning="more updates bore everybody")

register(""",
    1,
).replace("AT_MOST,", "Limits(keys=(BORING,), thresholds=lambda values: ChangeMaximums(error_above=values[BORING])),")
EVERYWHERE = """
import json
from support.topologies import topology_of, source, table, operators
import tomllib
from tidemark.cli.export.file_schemas import schema_of
from tidemark.cli.project.docs import slas
from tidemark.cli.project.init import explained
from tidemark.model.slas.sla_keys import form
from tidemark.model.slas.sla_spec import usable_slas
from tidemark.model.topology import parse

toml = topology_of({"name": "play"}, events=source()) + operators(newest=table(columns=["v"]))
topology = parse(tomllib.loads(toml), file="play.toml")
sla = {"subject": "newest", "measure": "unchanged_updates", "owner": "ann"}
tables = {"right": sla | {"boring_above": 3}, "wrong": sla | {"boring_abov": 3}}
found = usable_slas({"play": tables}, topology, file="slas.toml")
texts = [json.dumps(schema_of("slas")), slas(), explained(form())]
print(json.dumps([found.specs[0].limits.error_above, str(found.errors["wrong"]), *texts]))
"""


def test_a_key_of_a_made_up_measure_is_read_and_is_in_schema_page_and_template(tmp_path: Path) -> None:
    said = run_with(installed(tmp_path, {"measures": WITH_A_KEY}), EVERYWHERE, folder=tmp_path)
    limit, mistake, schema, page, template = json.loads(said)
    assert (limit, mistake) == (
        3, "slas.toml: play.wrong.boring_abov: is not a valid key here; did you mean boring_above?"
    )  # fmt: skip
    assert '"description": "more updates bore everybody"' in schema
    meaning = "for `unchanged_updates`: more updates bore everybody"
    assert f"| `boring_above` | `3` | integer | required | {meaning} |\n" in page
    assert "#   boring_above        required: more updates bore everybody" in template


def test_a_command_of_a_package_does_not_replace_ours(tmp_path: Path) -> None:
    packages = installed(tmp_path, {"commands": COMMAND}, name="check")
    assert "added by" not in run_with(packages, TIDEMARK, "--help", folder=tmp_path)


def test_a_made_up_command_is_listed_and_runs(packages: Path, tmp_path: Path) -> None:
    assert run_with(packages, TIDEMARK, "made_up", "Ann", folder=tmp_path) == "hello Ann\n"
    assert re.search(
        "^ +made_up +added by made_up_commands$", run_with(packages, TIDEMARK, "--help", folder=tmp_path), re.M
    )


PARSE = """
import json, tomllib
import polars as pl
from support.topologies import source, topology_of
from tidemark.model.topology import parse
from tidemark.stream.read.parsing import parsed

events = parse(tomllib.loads(topology_of(events=source(format="pairs"))), file="play.toml").operators["events"]
values = [b"id=a;v=7;event_time=1767268800000", b"nonsense", None, b"id=b"]
raw = pl.DataFrame({"source": "events", "partition": 0, "offset": [0, 1, 2, 3], "key": [b"k"] * 4, "value": values})
raw = raw.with_columns(headers=pl.lit(None), clock_ms=pl.lit(9, pl.Int64))
rows = parsed(events, raw)
print(json.dumps([rows["events"].to_list(), rows["reason"].to_list(), rows["detail"].to_list()]))
"""


def test_a_made_up_format_is_read_and_quarantines_what_it_cannot_read(packages: Path, tmp_path: Path) -> None:
    fields, reasons, details = json.loads(run_with(packages, PARSE, folder=tmp_path))
    assert fields[0] == {"id": "a", "v": 7, "event_time": 1_767_268_800_000}
    assert reasons == [None, "unreadable", "null_value", "unreadable"]
    assert [details[row].partition(":")[0] for row in (1, 3)] == ["ValueError", "TypeError"]


SEND = """
import json
import polars as pl
from support.topologies import EVENTS, operators
from tidemark.kernels.columns.schemas import HEADERS
from tidemark.model.topology import parse
from tidemark.stream.kafka.encoding import encoded
from tidemark.stream.kafka.limits import within_limits
from tidemark.kernels.records.limits import TopicLimits
import tomllib

toml = EVENTS + operators(out={"kind": "sink", "input": "events", "topic": "out", "format": "pairs"})
sink = parse(tomllib.loads(toml), file="play.toml").operators["out"]
values = {"id": ["a", "b;c", "d"], "v": [7, 8, None], "_deleted": [False, False, True], "_key": ["a", "b", "d"]}
rows = pl.DataFrame({**values, "_partition": 0, "_offset": [0, 1, 2], "_timestamp_ms": 9})
rows = rows.with_columns(_headers=pl.lit(None, HEADERS))
sent, set_aside = within_limits(sink, rows, TopicLimits(), now_ms=9)
values = [value and value.decode() for value in encoded(sink, sent)]
print(json.dumps([values, set_aside["detail"].to_list()]))
"""


def test_a_made_up_format_is_written_and_quarantines_what_it_cannot_write(packages: Path, tmp_path: Path) -> None:
    values, details = json.loads(run_with(packages, SEND, folder=tmp_path))
    # The third record deletes its key.
    assert values == ["id=a;v=7", None]
    (detail,) = details
    assert detail.startswith("operators.out.format must fit its records: ValueError: a value has a semicolon in ")


CHANNELS = """
import json
from tidemark.cli.export.file_schemas import schema_of
from tidemark.model.slas.channel_spec import parse

(desk,) = parse({"desk": {"kind": "phone", "phones": ["1"]}}, file="channels.toml")
print(json.dumps([desk.notifier, desk.arguments, "phone" in json.dumps(schema_of("channels"))]))
"""


def test_a_made_up_channel_is_read_and_in_the_schema(packages: Path, tmp_path: Path) -> None:
    notifier, arguments, is_in_schema = json.loads(run_with(packages, CHANNELS, folder=tmp_path))
    assert notifier.endswith(".PhoneNotifier")
    assert (arguments, is_in_schema) == ({"to": ["1"], "text": "{{ alert.text }}"}, True)


OPERATORS = """
import json
from tidemark.cli.export.file_schemas import schema_of
from tidemark.model.toml_operators import read_operator

table = {"kind": "cap", "input": "events", "column": "v", "at_most": 5}
small, _ = read_operator("play.toml", "small", table, folder=None)
_, mistakes = read_operator("play.toml", "small", {**table, "at_most": 0, "at_mosts": 5}, folder=None)
_, known = read_operator("play.toml", "small", {**table, "kind": "capp"}, folder=None)
said = json.dumps(schema_of("topology"))
print(json.dumps([small.column, small.at_most, *map(str, [*mistakes, *known]), "the largest value" in said]))
"""


def test_a_made_up_operator_is_read_refused_and_in_the_schema(packages: Path, tmp_path: Path) -> None:
    assert json.loads(run_with(packages, OPERATORS, folder=tmp_path)) == [
        "v",
        5,
        "play.toml: operators.small.at_most: is 0; write 1 or more, such as at_most = 100",
        "play.toml: operators.small.at_mosts: is not a valid key here; did you mean at_most?",
        "play.toml: operators.small.kind: is 'capp'; use one of aggregate, cap, join, map, repartition, sink, source, "
        "table, union; did you mean cap?",
        True,
    ]


SOURCES = """
import json
from tidemark.cli.export.file_schemas import schema_of
from tidemark.model.toml_operators import read_operator
from tidemark.stream.startup.source_list import input_text

table = {"kind": "source", "orc": "in", "fields": "id string, at bigint", "timestamp": "at", "bound": "1 s"}
events, _ = read_operator("play.toml", "events", table, folder=None)
del table["timestamp"]
_, mistakes = read_operator("play.toml", "events", {**table, "topic": "t", "files": "in"}, folder=None)
_, more = read_operator("play.toml", "events", {**table, "starting_offsets": "latest", "max_files": 3}, folder=None)
said = json.dumps(schema_of("topology"))
found = [events.read_from, input_text(events), *map(str, [*mistakes, *more]), "a folder of ORC files" in said]
print(json.dumps(found))
"""


def test_a_made_up_place_of_records_is_read_refused_and_in_the_schema(packages: Path, tmp_path: Path) -> None:
    found = json.loads(run_with(packages, SOURCES, folder=tmp_path))
    assert (found[0], found[1], found[-1]) == ("in", "folder of ORC files in", True)
    told = [line.removeprefix("play.toml: operators.events.") for line in found[2:-1]]
    assert [line.split("; ")[0] for line in told] == [
        "topic: is set together with files",
        "timestamp: is missing, and there is no topic",
        "max_files: is 3, but there is no delta or files",
        "starting_offsets: is 'latest', but the source reads a folder of ORC files, from its beginning",
    ]


def test_made_up_kinds_are_in_the_documentation(packages: Path, tmp_path: Path) -> None:
    said = run_with(
        packages,
        "from tidemark.cli.project.docs import measures, owners; print(measures(), owners())",
        folder=tmp_path,
    )
    assert "| `unchanged_updates` | operator | number of updates that changed nothing |\n" in said
    assert "| `legal_review` |  | the operator | DETAIL waited TIME for a legal review |" in said


def test_a_package_that_cannot_be_imported_stops_nothing(tmp_path: Path) -> None:
    broken = installed(tmp_path, {"measures": "import no_such_module"})
    count = "from tidemark.model.measures.registry import MEASURES; print(len(MEASURES))"
    assert run_with(broken, count, folder=tmp_path) == f"{len(MEASURES)}\n"


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two modules register the measure records: rename one"):
        exec(MEASURE.replace("unchanged_updates", "records"), {})


@pytest.mark.parametrize("measure", MEASURES.values(), ids=str)
def test_a_measure_is_the_same_in_another_process(measure: Measure) -> None:
    """Processes that check share their work, and ask `spec.measure is STALENESS`."""
    assert pickle.loads(pickle.dumps(measure)) is measure


def test_what_measures_count_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="unchanged_updates counts records in another way than a measure before"):
        exec(MEASURE.replace('what="unchanged"', 'what="records"'), {})


LOOKED_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from tidemark.account.owners.registry import OWNERS

barrier = Barrier(8)
def look(_):
    barrier.wait()
    return len(OWNERS)
with ThreadPoolExecutor(8) as pool:
    print({*pool.map(look, range(8))})
"""


def test_threads_that_look_at_once_see_the_whole_list(tmp_path: Path) -> None:
    assert run_with(tmp_path, LOOKED_AT_ONCE, folder=tmp_path) == f"{{{len(OWNERS)}}}\n"


def test_a_measure_says_whose_rows_or_fields_break_it() -> None:
    with pytest.raises(ValueError, match="the culprit of unchanged_updates is found by a check, so it moves ROWS"):
        exec(MEASURE.replace("Moved.ROWS", "Moved.REFUSAL"), {})


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, field) for kind in KINDS for field in fields(kind) if field.default is field.default_factory is MISSING],
    ids=lambda each: each.name if isinstance(each, Field) else each.__name__,
)
def test_each_part_of_a_kind_is_needed(kind: type[Any], field: Field[Any]) -> None:
    parts = {each.name: getattr(KINDS[kind], each.name) for each in fields(kind) if each.name != field.name}
    with pytest.raises(TypeError, match=field.name):
        kind(**parts)
