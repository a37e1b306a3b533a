"""Maintenance windows by hand; 2026-11-22 is a Sunday."""

import pytest

from tidemark.model.settings.intervals import instant_ms
from tidemark.model.settings.maintenance_windows import maintenance_window


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [
        ("Sun 02:00-04:00", ["2026-11-22T02:00", "2026-11-29T03:59:59.999"], ["2026-11-22T04:00", "2026-11-23T03:00"]),
        ("Sun 22:00-02:00", ["2026-11-22T23:00", "2026-11-23T01:59"], ["2026-11-22T01:00", "2026-11-24T01:00"]),
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
    "text",
    ["", "Sunday 02:00-04:00", "Sun 2:00-4:00", "Sun 24:00-25:00", "Sun 02:00-02:00", "2026-11-22", "2026-11-22/x",
     "2026-11-22/2026-11-21", "sun 02:00-04:00", "Sun 02:00-04:00\n"],
)  # fmt: skip
def test_what_is_no_window_is_none(text: str) -> None:
    assert maintenance_window(text) is None
