"""What `tidemark why` may say is a closed vocabulary, and people can look it up."""

import re
from pathlib import Path

from tidemark.why.findings import Cause, Finding, in_order

DOCUMENT = Path(__file__).parents[2] / "docs" / "why.md"


def test_the_document_has_each_cause_and_no_other() -> None:
    named = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(Cause)


def finding(cause: Cause, operator: str = "board") -> Finding:
    return Finding(cause=cause, sub_topology="events", operator=operator, seen="it is silent", remedy="wait")


def test_what_needs_nothing_to_be_done_comes_last_and_nothing_comes_twice() -> None:
    found = [finding(cause) for cause in (Cause.NOTHING_WRONG, Cause.SOURCE_QUIET, Cause.BACKLOG, Cause.BACKLOG)]
    assert [each.cause for each in in_order(found)] == [Cause.BACKLOG, Cause.SOURCE_QUIET, Cause.NOTHING_WRONG]


def test_a_finding_is_one_line() -> None:
    waits = Finding(
        cause=Cause.WINDOW_NOT_CLOSED, sub_topology="events", operator="per_minute", input="events", partition=1,
        since_ms=0, seen="1 results wait", remedy="wait",
    )  # fmt: skip
    assert waits.line == (
        "window_not_closed: per_minute ← events partition 1 since 1970-01-01T00:00:00.000Z: 1 results wait; wait"
    )
    assert finding(Cause.BACKLOG).line == "backlog: board: it is silent; wait"
