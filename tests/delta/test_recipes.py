"""Each recipe of docs/recipes.md gives rows worked out by hand.

It runs as its file is, over a small feed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.play import Play, Row, ms
from tidemark.cli.project.check import check

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "recipes").glob("*.toml"))
MINUTE = 60


def recipe(name: str, home: Path, **options: Any) -> Play:
    return Play((DOCS / "recipes" / f"{name}.toml").read_text(encoding="utf-8"), home, **options)


def told(play: Play, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Returns sorted *columns* of *table*; instants as seconds after the start."""
    play.settle()
    instants = {"window_start", "window_end", "timestamp", "last_seen_at"}
    return sorted(
        (tuple((row[c] - ms(0)) / 1_000 if c in instants else row[c] for c in columns) for row in play.rows(table)),
        key=str,
    )


def test_the_page_shows_the_recipes_as_they_are() -> None:
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"\[recipes/(\w+)\.toml\]\(recipes/\1\.toml\).*?\n```toml\n(.*?)```", page, re.DOTALL))
    assert shown == {file.stem: file.read_text(encoding="utf-8") for file in FILES}


def test_check_finds_nothing_wrong_with_a_recipe(tmp_path: Path) -> None:
    lines = check(FILES, tmp_path)
    assert not [line for line in lines if "warning" in line and line.startswith(tuple(file.name for file in FILES))]


def test_iot_readings_with_gaps_and_late_ones(tmp_path: Path) -> None:
    play = recipe("iot", tmp_path)

    def read(at_s: int, *readings: tuple[float, str, float]) -> None:
        rows = [play.row("readings", ms(second), sensor=sensor, temp_c=temp) for second, sensor, temp in readings]
        play.batch(rows, at_ms=ms(at_s))

    read(60, (10, "a", 20.0), (20, "b", 18.0), (50, "a", 22.0))
    read(80, (70, "a", 21.0), (40, "b", 18.0))  # b is late, and in time: its minute is open until 90 s
    read(101, (100, "a", 21.0))  # the watermark comes to 94.999 s: the first minute closes
    read(105, (30, "b", 19.0))  # too late
    read(251, (250, "a", 21.5))  # nothing from 120 to 240 s: minutes without readings have no row
    columns = ("sensor", "window_start", "window_end", "readings", "mean_c", "warmest_c", "window_final")
    assert told(play, "minutes", *columns) == [
        ("a", 0, 60, 2, 21.0, 22.0, True),
        ("a", 60, 120, 2, 21.0, 21.0, True),
        ("b", 0, 60, 2, 18.0, 18.0, True),
    ]
    # b: the reading of 40 s repeats that of 20 s, the one of 30 s is older.
    assert told(play, "sensors", "sensor", "temp_c", "timestamp", "last_seen_at") == [
        ("a", 21.5, 250, 250), ("b", 18.0, 20, 40)
    ]  # fmt: skip
    assert told(play, "late_records", "operator", "timestamp", "lateness_ms") == [("per_minute", 30, 64_999)]


def test_cdc_with_tombstones(tmp_path: Path) -> None:
    play = recipe("cdc", tmp_path)

    def version(second: int, id_: str, tier: str) -> Row:
        names = {"c1": "Ann", "c2": "Bob"}
        return play.row("customer_events", ms(second), key=id_, id=id_, name=names[id_], tier=tier)

    play.batch([version(1, "c1", "basic"), version(2, "c2", "basic"), version(3, "c1", "gold")], at_ms=ms(3))
    repeated, row = version(4, "c1", "gold"), play.row("customer_events", ms(9), key="c2", id="c2")
    # The tombstone has the newest time before it, 4 s; the last version is older than the one of 3 s.
    tombstone = row | {"deleted": True, "timestamp_ms": None}
    play.batch([repeated, tombstone, version(2, "c1", "basic")], at_ms=ms(5))
    assert told(play, "customers_now", "id", "name", "tier", "timestamp") == [("c1", "Ann", "gold", 3)]
    assert told(play, "customers_log", "id", "timestamp", "tier", "deleted") == [
        ("c1", 1, "basic", False), ("c1", 3, "gold", False), ("c2", 2, "basic", False), ("c2", 4, None, True)
    ]  # fmt: skip


def test_a_clickstream_without_keys(tmp_path: Path) -> None:
    play = recipe("clicks", tmp_path, partitions=2)

    def click(minute: int, visitor: str | None, page: str, partition: int = 0) -> Row:
        at_s = minute * MINUTE
        at = {"clicked_at": ms(at_s) // 1_000}
        return play.row("clicks", ms(at_s), partition=partition, key=None, visitor=visitor, page=page, **at)

    first = [click(0, "v1", "home"), click(10, "v1", "cart"), click(60, "v1", "home"), click(61, None, "home")]
    play.batch([*first, click(5, "v2", "home", 1)], at_ms=ms(61 * MINUTE))
    play.batch([click(121, "v3", "home", partition) for partition in (0, 1)], at_ms=ms(121 * MINUTE))
    columns = ("visitor", "window_start", "window_end", "clicks", "first_page", "last_page")
    assert told(play, "visit_log", *columns) == [
        ("v1", 0, 40 * MINUTE, 2, "home", "cart"),
        ("v1", 60 * MINUTE, 90 * MINUTE, 1, "home", "home"),
        ("v2", 5 * MINUTE, 35 * MINUTE, 1, "home", "home"),
    ]
    assert told(play, "pages", "page", "window_start", "clicks", "visitors") == [
        ("cart", 0, 1, 1), ("home", 0, 2, 2), ("home", 60 * MINUTE, 2, 1)
    ]  # fmt: skip
    assert told(play, "quarantine", "source", "reason") == [("visits", "null_key")]


def test_orders_joined_to_customers(tmp_path: Path) -> None:
    play = recipe("orders", tmp_path)

    def order(second: int, id_: str, customer: str) -> Row:
        return play.row("orders", ms(second), order_id=id_, customer=customer, amount=5.0)

    def tier(second: int, name: str) -> Row:
        return play.row("customer_events", ms(second), key="c1", customer="c1", tier=name)

    tiers = [tier(0, "basic"), tier(100, "gold")]
    play.batch([*tiers, order(50, "o1", "c1")], at_ms=ms(100))
    play.batch([order(150, "o2", "c1"), order(160, "o3", "c9"), order(60, "o4", "c1")], at_ms=ms(160))
    assert told(play, "order_board", "order_id", "customer", "amount", "tier") == [
        ("o1", "c1", 5.0, "basic"), ("o2", "c1", 5.0, "gold"), ("o3", "c9", 5.0, None), ("o4", "c1", 5.0, "basic")
    ]  # fmt: skip


def test_the_newest_reading_of_several_versions(tmp_path: Path) -> None:
    play = recipe("registry", tmp_path)

    def reading(at_s: int, sensor: str, temp_c: float, **fields: str) -> Row:
        return play.row("readings", ms(at_s), sensor=sensor, temp_c=temp_c, **fields)

    play.batch([reading(10, "a", 20.0), reading(12, "b", 18.0)], at_ms=ms(20))  # a version without `site`
    play.batch([reading(30, "a", 21.0, site="hall", other='{"unit":"C"}'), reading(11, "b", 17.0)], at_ms=ms(40))
    columns = ("sensor", "temp_c", "site", "other", "read_at")
    play.settle()
    rows = sorted(tuple(row[column] for column in columns) for row in play.rows("sensors"))
    assert rows == [("a", 21.0, "hall", '{"unit":"C"}', ms(30)), ("b", 18.0, None, None, ms(12))]
