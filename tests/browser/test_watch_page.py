"""The page of watched tables is filtered and put in order without a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tidemark.watch.commits import AddedFile, ChosenColumn, Clock, Commit, FileTimes, History, Span, TimeColumn, Writer
from tidemark.watch.documents import as_page
from tidemark.watch.rules import TableAge, past_commits, table_age
from tidemark.watch.visible import VisibleFiles

HOUR = 3_600_000
NOW = 10 * HOUR


def table(name: str, newest_ms: int | None, at_ms: int) -> TableAge:
    """A table with a commit; without a newest event time its log does not say it."""
    times = FileTimes(newest_ms, Span(newest_ms, newest_ms))
    files = VisibleFiles({})
    commit = Commit(0, at_ms, Clock.WRITER, "WRITE", Writer("spark"), (AddedFile("a", 1, 1, True, times),))  # noqa: FBT003
    past = tuple(past_commits([commit], files, -1))
    chosen = ChosenColumn(TimeColumn("at", "at", "timestamp"), ("at",))
    history = History(Path("/lake") / name, name, 0, chosen, past, -1, files.newest)
    return table_age(history, now_ms=NOW, since_ms=0, limit_ms=2 * HOUR)


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    tables = [
        table("fresh", 9 * HOUR, 9 * HOUR),
        table("old", 3 * HOUR, 9 * HOUR + 1),
        table("unknown", None, 9 * HOUR + 2),
        table("older", 2 * HOUR, 8 * HOUR + 3),
    ]
    (tmp_path / "page.html").write_text(as_page(tables, now_ms=NOW, limit_ms=2 * HOUR), encoding="utf-8")
    context = chromium.new_context(viewport={"width": 1320, "height": 900})
    shown = context.new_page()
    shown.goto((tmp_path / "page.html").as_uri())
    yield shown
    context.close()


def names(page: Page) -> list[str]:
    """The visible tables from top to bottom."""
    rows = [row for row in page.locator("tr.table").all() if row.is_visible()]
    tops = {row.locator("th").inner_text().rpartition("/")[2]: (row.bounding_box() or {})["y"] for row in rows}
    return sorted(tops, key=lambda name: tops[name])


def test_tables_are_filtered_by_verdict(page: Page) -> None:
    assert names(page) == ["fresh", "old", "unknown", "older"]
    page.get_by_label("error (2)").check()
    assert names(page) == ["old", "older"]
    page.get_by_label("unknown (1)").check()
    assert names(page) == ["unknown"]
    page.get_by_label("all (4)").check()
    assert len(names(page)) == 4


def test_tables_are_put_in_order_worst_first(page: Page) -> None:
    page.get_by_label("age", exact=True).check()
    assert names(page) == ["unknown", "older", "old", "fresh"]
    page.get_by_label("verdict", exact=True).check()
    assert names(page) == ["old", "older", "unknown", "fresh"]
    page.get_by_label("last data commit", exact=True).check()
    assert names(page) == ["older", "fresh", "old", "unknown"]
    page.get_by_label("error (2)").check()
    assert names(page) == ["older", "old"]


def test_columns_stand_below_one_another_in_each_order(page: Page) -> None:
    page.get_by_label("age", exact=True).check()
    heads = [(cell.bounding_box() or {})["x"] for cell in page.locator("#tables thead th").all()]
    for row in page.locator("tr.table").all():
        assert [(cell.bounding_box() or {})["x"] for cell in row.locator("th, td").all()] == pytest.approx(heads, abs=1)
