"""Maintenance windows by hand; 2026-11-22 is a Sunday."""

import pytest

from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.maintenance_windows import maintenance_window


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [
        ("Sun 02:00-04:00", ["2026-11-22T02:00", "2026-11-29T03:59:59.999"], ["2026-11-22T04:00", "2026-11-23T03:00"]),
        (
            "Sun 22:00-02:00",
            ["2026-11-22T23:00", "2026-11-23T01:59"],
            ["2026-11-22T01:00", "2026-11-23T22:00", "2026-11-24T01:00"],
        ),
        ("Thu 00:00-23:59", ["1970-01-01T00:00", "2026-11-26T12:00"], ["2026-11-27T00:00", "2026-11-26T23:59"]),
        ("daily 23:30-00:30", ["2026-11-22T23:30", "2026-11-23T00:29"], ["2026-11-23T00:30", "2026-11-23T23:29"]),
        ("2026-11-22T10:00Z/2026-11-22T12:00+01:00", ["2026-11-22T10:00", "2026-11-22T10:59"], ["2026-11-22T11:00"]),
    ],
)
def test_a_window_holds_from_its_start_until_its_end(text: str, within: list[str], without: list[str]) -> None:
    window = maintenance_window(text)
    assert window is not None
    assert [at for at in within + without if window.holds(instant_ms(at))] == within


@pytest.mark.parametrize(
    ("text", "at", "changed"),
    [
        ("Sun 02:00-04:00", "2026-11-23T07:00", "2026-11-22T04:00"),  # a day after they ended
        ("Sun 02:00-04:00", "2026-11-22T03:59:59.999", "2026-11-22T02:00"),  # within them
        ("Sun 02:00-04:00", "2026-11-22T04:00", "2026-11-22T04:00"),
        ("Sun 02:00-04:00", "2026-11-22T01:59", "2026-11-15T04:00"),
        # At the clock change of 2026-10-25 they last three hours, and at that of 2026-03-29 one.
        ("Sun 02:00-04:00 Europe/Berlin", "2026-10-25T12:00", "2026-10-25T03:00"),
        ("Sun 02:30-04:00 Europe/Berlin", "2026-03-29T01:30", "2026-03-29T01:00"),
        ("daily 00:00-23:59", "2026-11-22T23:59:30", "2026-11-22T23:59"),
        ("2026-11-22T10:00Z/2026-11-22T12:00Z", "2026-11-25T00:00", "2026-11-22T12:00"),
        ("2026-11-22T10:00Z/2026-11-22T12:00Z", "2026-11-22T11:00", "2026-11-22T10:00"),
        ("2026-11-22T10:00Z/2026-11-22T12:00Z", "2026-11-22T09:00", None),
    ],
)
def test_a_window_last_changed_at_its_end_or_start(text: str, at: str, changed: str | None) -> None:
    window, at_ms = maintenance_window(text), instant_ms(at)
    changed_ms = None if changed is None else instant_ms(changed)
    assert window is not None
    assert window.changed_ms(at_ms, after_ms=0) == changed_ms
    assert window.changed_ms(at_ms, after_ms=at_ms if changed_ms is None else changed_ms) is None


@pytest.mark.parametrize(
    "text",
    ["", "Sunday 02:00-04:00", "Sun 2:00-4:00", "Sun 24:00-25:00", "Sun 02:00-02:00", "2026-11-22", "2026-11-22/x",
     "2026-11-22/2026-11-21", "sun 02:00-04:00", "Sun 02:00-04:00\n"],
)  # fmt: skip
def test_what_is_no_window_is_none(text: str) -> None:
    assert maintenance_window(text) is None


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [
        # Berlin is an hour ahead of UTC in winter, two in summer.
        ("daily 02:00-03:00 Europe/Berlin", ["2026-01-10T01:00Z", "2026-07-10T00:59Z"], ["2026-07-10T01:00Z"]),
        # On 2026-03-29 01:00Z its clocks go from 02:00 to 03:00: there is no 02:30.
        ("Sun 02:00-03:00 Europe/Berlin", [], ["2026-03-29T00:59:59Z", "2026-03-29T01:00Z", "2026-03-29T01:30Z"]),
        ("Sun 01:30-03:30 Europe/Berlin", ["2026-03-29T00:30Z", "2026-03-29T01:29Z"], ["2026-03-29T01:30Z"]),
        # On 2026-10-25 01:00Z they go from 03:00 back to 02:00: 02:30 is at 00:30Z and at 01:30Z.
        (
            "Sun 02:00-03:00 Europe/Berlin",
            ["2026-10-25T00:00Z", "2026-10-25T00:30Z", "2026-10-25T01:30Z", "2026-10-25T01:59Z"],
            ["2026-10-24T23:59Z", "2026-10-25T02:00Z"],
        ),
        # It begins on Saturday in Kolkata, which is 5 h 30 min ahead, and ends on Sunday.
        ("Sat 23:00-01:00 Asia/Kolkata", ["2026-11-21T17:30Z", "2026-11-21T19:29Z"], ["2026-11-21T19:30Z"]),
        # New York's clocks go from 02:00 to 03:00 on 2026-03-08 07:00Z.
        ("Sun 22:00-02:30 America/New_York", ["2026-03-09T06:29Z"], ["2026-03-09T06:30Z", "2026-03-08T06:29Z"]),
    ],
)
def test_hours_are_those_of_the_zones_clock(text: str, within: list[str], without: list[str]) -> None:
    window = maintenance_window(text)
    assert window is not None
    assert [at for at in within + without if window.holds(instant_ms(at))] == within


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "Europe", "../etc/passwd", "/etc/localtime", "berlin time"])
def test_an_unknown_zone_makes_no_window(zone: str) -> None:
    assert maintenance_window(f"daily 01:00-02:00 {zone}") is None
