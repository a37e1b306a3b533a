"""`tidemark test`: runs the tests of topologies in memory, without Spark, Kafka and Delta."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from operator import eq
from pathlib import Path
from time import perf_counter
from typing import Any

from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument, InvalidSpec
from tidemark.model.project.files import TESTS, Project
from tidemark.model.settings.lengths import counted
from tidemark.model.settings.toml_files import read_toml
from tidemark.model.settings.value_types import suggestion_of
from tidemark.model.topology import Topology, load_each, name_in
from tidemark.query.text_table import as_document, format_table
from tidemark.testing.accepting import accepted
from tidemark.testing.file_format import TOPOLOGY, TopologyTest, in_json, parse
from tidemark.testing.outcome import Difference, Outcome, mistakes

ALL_PASSED, ONE_FAILED = 0, 1
NUMBER = re.compile(r"-?\d+(\.\d+)?")

Result = tuple[TopologyTest, Outcome, list[Difference]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="topologies, or TOML files of tests (default: all tests of the project)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    text = "write into the files, as what is expected, what was seen by tests that failed or expect nothing yet"
    parser.add_argument("--accept", action="store_true", help=text)


def command(options: argparse.Namespace) -> int:
    """Prints a line for each test, and each difference; returns ALL_PASSED or ONE_FAILED."""
    began_s = perf_counter()
    project = Project.here()
    files = files_of_tests(project, options.names)
    errors: list[str] = []
    results: list[tuple[Path, Topology, list[Result]]] = []
    for file in files:
        try:
            results.append((file, *run_file(file)))
        except InvalidSpec as error:
            errors.append(str(error))
    if errors:
        raise InvalidSpec("\n".join(errors))
    if options.accept:
        for file, _, of_file in results:
            if accept(file, of_file):
                say(f"wrote {file}")
        return ALL_PASSED
    tests = [(topology.name, test, differences) for _, topology, of_file in results for test, _, differences in of_file]
    failed = sum(bool(differences) for *_, differences in tests)
    if options.json:
        rows = [_as_rows(*each) for each in tests]
        say(as_document({"passed": len(tests) - failed, "failed": failed, "tests": rows}))
    else:
        for _, test, differences in tests:
            say_inert("\n".join(lines_of(test, differences)))
        if not files:
            say_inert(f"{project.topologies / TESTS} has no tests; write one into NAME.toml there (docs/testing.md)")
        took = f"{perf_counter() - began_s:.2f} s"
        say_inert(f"{counted(len(tests), 'test')}: {len(tests) - failed} passed, {failed} failed ({took})")
    return ONE_FAILED if failed else ALL_PASSED


def files_of_tests(project: Project, names: Sequence[str]) -> list[Path]:
    """Returns the files of tests with *names*: of topologies, or of files; all of *project* without names.

    Raises InvalidArgument for a name without tests.
    """
    chosen: dict[Path, None] = {}
    for name in names:
        path, folder, topology = Path(name).resolve(), project.topologies, name
        if path.is_file():
            if "operators" not in read_toml(path):
                chosen[path] = None
                continue
            folder, topology = path.parent, name_in(path)
        found = {file: read_toml(file).get(TOPOLOGY.name, file.stem) for file in _in(folder)}
        of_topology = [file for file, tested in found.items() if tested == topology]
        if not of_topology:
            known = ", ".join(sorted({*map(str, found.values())})) or "none"
            msg = f"{name}: no file in {folder / TESTS} tests this topology; topologies with tests: {known}"
            raise InvalidArgument(msg)
        chosen |= dict.fromkeys(of_topology)
    return [*chosen] if names else _in(project.topologies)


def _in(folder: Path) -> list[Path]:
    """Returns the files of tests beside the topologies of *folder*."""
    return sorted((folder / TESTS).glob("**/*.toml"))


def run_file(file: Path) -> tuple[Topology, list[Result]]:
    """Returns the topology that the tests of *file* are about, and each test with what was seen and its differences.

    Raises:
        InvalidSpec: the file, or that of the topology, has mistakes; a line each.
    """
    named, tests = parse(read_toml(file), file=file.name)
    topology = _topology(file, named)
    ready: list[tuple[TopologyTest, Outcome]] = []
    wrong: list[InvalidSpec] = []
    for test in tests:
        found, outcome = mistakes(test, topology)
        wrong += found
        ready += [(test, outcome)] if outcome else []
    if wrong:
        raise InvalidSpec("\n".join(map(str, wrong)))
    return topology, [(test, outcome, outcome.play(test)) for test, outcome in ready]


def accept(file: Path, results: Sequence[Result]) -> bool:
    """Writes into *file* what its tests have seen, where that is not expected; returns whether it has changed.

    Raises:
        InvalidSpec: the file is written in another way.
    """
    text = file.read_text(encoding="utf-8")
    written = accepted(text, results, file.name)
    if written != text:
        file.write_text(written, encoding="utf-8")
    return written != text


def _topology(file: Path, named: str | None) -> Topology:
    """Returns the topology *named*, or called as *file*, in the folder of topologies around *file*."""
    folder = next((parent.parent for parent in file.resolve().parents if parent.name == TESTS), file.resolve().parent)
    found = load_each(folder)
    name = named or file.stem
    for path, each in found.items():
        if isinstance(each, Topology) and each.name == name:
            return each
        if isinstance(each, InvalidSpec) and path.stem == name:
            raise each
    names = [each.name for each in found.values() if isinstance(each, Topology)]
    problem = f"is {name!r}, which no file of {folder} describes"
    raise InvalidSpec.at(file.name, "topology", problem, suggestion_of(name, names, "topologies"))


def lines_of(test: TopologyTest, differences: Sequence[Difference]) -> Iterator[str]:
    """Yields the lines about *test* for people."""
    yield f"{'FAILED' if differences else 'passed'}  {test.file}: {test.name}"
    for difference in differences:
        yield from ("  " + line for line in _difference(difference))


def _difference(found: Difference) -> Iterator[str]:
    if found.what not in {"rows", "current"}:
        yield f"{found.operator}: {found.what}: expected {found.expected[0][0]}, seen {found.seen[0][0]}"
        return
    what = "current rows" if found.what == "current" else "rows"
    same = f"; {counted(found.alike, 'row')} as expected" if found.alike else ""
    yield f"{found.operator}: other {what} than expected (-), seen (+){same}"
    signed = [("-", row) for row in found.expected]
    # What was seen comes behind the expected row that it is most like.
    for row in found.seen:
        likeness = [sum(map(eq, row, other)) if sign == "-" else -1 for sign, other in signed]
        signed.insert(likeness.index(max(likeness)) + 1 if found.expected else len(signed), ("+", row))
    rows = [[sign, *map(_cell, row)] for sign, row in signed]
    yield from format_table(["", *found.columns], rows).splitlines()


def _cell(value: object) -> str:
    """Returns *value* as JSON, so that no digit is lost; text without quotes, unless it could be something else."""
    if isinstance(value, str) and value not in {"", "null", "true", "false"} and not NUMBER.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False, default=in_json)


def _as_rows(topology: str, test: TopologyTest, differences: Sequence[Difference]) -> dict[str, Any]:
    told = []
    for each in differences:
        rows = {"expected": each.expected, "seen": each.seen}
        named = {key: [dict(zip(each.columns, row, strict=True)) for row in rows[key]] for key in rows}
        told.append({"operator": each.operator, "what": each.what, **named})
    return {"topology": topology, "file": test.file, "test": test.name, "passed": not told, "differences": told}
