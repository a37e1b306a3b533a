"""Checks of one SLA become incidents and notifications, worked out by hand."""

import pytest

from tidemark.errors import InvalidArgument
from tidemark.semantics.incidents import Change, Damping, SlaState, follow
from tidemark.semantics.sla import Verdict

WORDS = {"p": Verdict.PASS, "w": Verdict.WARN, "e": Verdict.ERROR, "n": Verdict.NEVER_LOADED, "u": Verdict.UNKNOWN}
OPENS, WORSE, ENDS = Change.OPENED, Change.ESCALATED, Change.RESOLVED


def changes(checks: str, damping: Damping) -> dict[int, Change]:
    """Returns each check's changes by its place; a check a minute."""
    found, standing = {}, SlaState()
    for minute, letter in enumerate(checks):
        standing, change = follow(standing, at_ms=minute * 60_000, verdict=WORDS[letter], damping=damping)
        if change:
            found[minute] = change
    return found


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("ppp", {}),
        ("pwwwp", {1: OPENS, 4: ENDS}),
        ("pwep", {1: OPENS, 2: WORSE, 3: ENDS}),
        ("eww", {0: OPENS}),  # better is no news, as long as it does not hold
        ("ewe", {0: OPENS}),
        ("wewe", {0: OPENS, 1: WORSE}),  # worse once, however often
        ("nnp", {0: OPENS, 2: ENDS}),
        ("wne", {0: OPENS, 1: WORSE}),
        ("euup", {0: OPENS, 3: ENDS}),  # nothing measured: neither broken nor well
        ("puup", {}),
        ("uuu", {}),
        ("epep", {0: OPENS, 1: ENDS, 2: OPENS, 3: ENDS}),
    ],
)
def test_undamped(checks: str, expected: dict[int, Change]) -> None:
    assert changes(checks, Damping()) == expected


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("epepeppp", {0: OPENS, 7: ENDS}),  # holds from minute 5 on
        ("eppup", {0: OPENS, 4: ENDS}),  # from minute 1 on; what measured nothing does not interrupt
        ("epe", {0: OPENS}),
        ("wpe", {0: OPENS, 2: WORSE}),
    ],
)
def test_an_incident_resolves_after_its_sla_held_two_minutes(checks: str, expected: dict[int, Change]) -> None:
    assert changes(checks, Damping(resolve_after_ms=120_000)) == expected


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ("eepeep", {}),
        ("eee", {2: OPENS}),
        ("wwe", {2: OPENS}),  # as an error, at once: no escalation
        ("wuee", {2: OPENS}),
        ("eeep", {2: OPENS, 3: ENDS}),
    ],
)
def test_an_incident_opens_after_its_sla_was_broken_two_minutes(checks: str, expected: dict[int, Change]) -> None:
    assert changes(checks, Damping(open_after_ms=120_000)) == expected


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="0 ms or more, got -1 and 0"):
        Damping(open_after_ms=-1)
