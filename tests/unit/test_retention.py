"""Retention of rows in topology files, and its defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tidemark.errors import InvalidSpec
from tidemark.model.settings.declared_tables import refuse_mistakes
from tidemark.model.settings.retention import FORM, Retention, retention_of

DAY_MS = 24 * 60 * 60 * 1_000
TEXT = (Path(__file__).parents[2] / "docs" / "maintenance.md").read_text(encoding="utf-8")


def read(content: dict[str, object]) -> Retention:
    values = FORM.read("x.toml", "retention", content)
    refuse_mistakes([values])
    return retention_of(values)


def test_what_is_documented_is_what_is_meant_without_it() -> None:
    documented = tomllib.loads(TEXT.split("```toml\n")[1].split("```")[0])["retention"]
    assert read(documented) == read({}) == Retention()


def test_rows_of_each_table_are_kept_as_long_as_its_key_says() -> None:
    kept = read({"facts": "1 d", "set_aside": "2 d", "changes": "3 d", "state": "4 d"})
    tables = ("batches", "suppressed", "dead_letters", "changes", "state_changes")
    assert [kept.of_stream(table) for table in tables] == [days * DAY_MS for days in (1, 1, 2, 3, 4)]


def test_for_ever_is_a_length() -> None:
    assert read({"facts": "for ever"}).facts_ms is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"fact": "1 d"}, "x.toml: retention.fact: is not a valid key here; did you mean facts?"),
        ({"facts": "soon"}, "x.toml: retention.facts: is 'soon', which has no known unit"),
        ({"facts": "0 d"}, "x.toml: retention.facts: is '0 d'; write a length above 0"),
        ({"facts": 30}, "x.toml: retention.facts: "),
    ],
)
def test_what_cannot_be_meant_is_refused(said: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read(said)
    assert str(refused.value).startswith(told)
