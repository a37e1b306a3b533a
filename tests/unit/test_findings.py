"""Findings of `tidemark why` are a closed, documented vocabulary."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.causes import known_causes
from tidemark.cli.project.docs import PAGES
from tidemark.why.causes.registry import rules
from tidemark.why.causes.windows import WINDOW_NOT_CLOSED
from tidemark.why.evidence.findings import (
    BACKLOG,
    NOTHING_WRONG,
    SOURCE_QUIET,
    Cause,
    Trait,
    WhyFinding,
    in_order,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_the_document_has_each_remark_and_no_other() -> None:
    remarks = (DOCS / "remarks.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| .", remarks, re.MULTILINE) == sorted(known_causes())


@pytest.mark.parametrize("name", PAGES)
def test_each_page_that_follows_from_the_product_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run `tidemark docs`"


def test_each_cause_is_a_fault_or_usual_or_quiet() -> None:
    for cause in known_causes():
        assert cause.traits & (Trait.FAULT | Trait.USUAL | Trait.QUIET) in (Trait.FAULT, Trait.USUAL, Trait.QUIET), (
            cause
        )


def finding(cause: Cause, operator: str = "board") -> WhyFinding:
    return WhyFinding(cause=cause, sub_topology="events", operator=operator, seen="it is silent", remedy="wait")


def test_findings_without_a_remedy_come_last_and_once() -> None:
    found = [finding(cause) for cause in (NOTHING_WRONG, SOURCE_QUIET, BACKLOG, BACKLOG)]
    assert [each.cause for each in in_order(found)] == [BACKLOG, SOURCE_QUIET, NOTHING_WRONG]


def test_a_finding_is_one_line() -> None:
    waits = WhyFinding(
        cause=WINDOW_NOT_CLOSED, sub_topology="events", operator="per_minute", input="events", partition=1,
        since_ms=0, seen="1 results wait", remedy="wait",
    )  # fmt: skip
    assert waits.line == (
        "window_not_closed: per_minute ← events partition 1 since 1970-01-01T00:00:00.000Z: 1 results wait; wait"
    )
    assert finding(BACKLOG).line == "backlog: board: it is silent; wait"


def test_two_causes_with_one_word_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^backlog: two causes have this word$"):
        Cause("backlog", Trait.FAULT)


def test_a_cause_is_pickled_with_its_traits() -> None:
    silent = pickle.loads(pickle.dumps(SOURCE_QUIET))
    assert (silent, silent.traits) == ("source_quiet", Trait.QUIET | Trait.SILENCE)


def test_a_cause_is_unpickled_without_the_file_that_declares_it() -> None:
    read = "import pickle, sys; cause = pickle.load(sys.stdin.buffer); print(cause, cause.traits.name)"
    pickled = pickle.dumps(WINDOW_NOT_CLOSED)
    other = subprocess.run([sys.executable, "-c", read], input=pickled, capture_output=True, check=True)
    assert other.stdout.decode().split() == ["window_not_closed", "USUAL|EVENT_TIME"]


def test_a_rule_needs_no_code_outside_of_its_file() -> None:
    assert "changed_fields" in [rule.__name__ for rule in rules()]
