"""A driver asks again upon news, and after a time anyway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.control import news
from tidemark.control.news import ASKS_EVERY_S, LOOKS_EVERY_S, News


class Driver:
    """Counts requests to a folder, by a clock set by hand."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.news, self.now_s, self.asked = News(home), 1_000.0, 0
        monkeypatch.setattr(news, "since_boot_s", lambda: self.now_s)

    def ask(self, *, after_s: float = 0.0) -> int:
        self.now_s += after_s
        return self.news.answer("epoch", self._ask)

    def _ask(self) -> int:
        self.asked += 1
        return self.asked


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(tmp_path, monkeypatch)


def test_without_news_answers_stay(driver: Driver) -> None:
    assert [driver.ask(after_s=LOOKS_EVERY_S) for _ in range(5)] == [1, 1, 1, 1, 1]


def test_news_of_another_process_are_seen_with_the_next_look(driver: Driver, tmp_path: Path) -> None:
    driver.ask()
    News(tmp_path).spread()
    assert driver.ask(after_s=LOOKS_EVERY_S - 1) == 1
    assert driver.ask(after_s=1) == 2
    assert driver.ask(after_s=LOOKS_EVERY_S) == 2


def test_news_of_the_same_process_are_seen_at_once(driver: Driver) -> None:
    driver.ask()
    driver.news.spread()
    assert driver.ask() == 2


def test_a_process_that_was_stopped_looks_when_it_wakes_up(driver: Driver, tmp_path: Path) -> None:
    driver.ask()
    News(tmp_path).spread()
    assert driver.ask(after_s=3_600) == 2


def test_what_came_without_news_is_seen_after_a_while(driver: Driver) -> None:
    driver.ask()
    assert driver.ask(after_s=ASKS_EVERY_S) == 2


def test_news_while_it_asks_are_not_missed(driver: Driver, tmp_path: Path) -> None:
    def ask() -> str:
        News(tmp_path).spread()
        return "before"

    assert driver.news.answer("drain", ask) == "before"
    driver.now_s += LOOKS_EVERY_S
    assert driver.news.answer("drain", lambda: "after") == "after"
