"""The index lists each decision by its title, and mentions exist."""

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "docs" / "decisions"
MENTION = re.compile(r"\bdecisions?\s+(\d+(?:(?:,| and|, and| to)\s\d+)*)\b", re.IGNORECASE)
MENTIONING = ("*.md", "docs/**/*.md", *(f"{name}/**/*.py" for name in ("jobs", "plugins", "dags", "tests")))


def numbers() -> dict[int, Path]:
    """Returns the page of each decision."""
    return {int(page.name[:4]): page for page in sorted(FOLDER.glob("[0-9]*.md"))}


def mentions(text: str) -> Iterator[int]:
    """Yields the numbers of decisions that *text* names."""
    for match in MENTION.finditer(text):
        yield from map(int, re.findall(r"\d+", match[1]))


def test_the_index_has_the_title_of_each_decision() -> None:
    pages = numbers().values()
    titles = [page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for page in pages]
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\* \[(.+)\]\((.+)\)$", index, re.MULTILINE) == [
        (title, page.name) for title, page in zip(titles, pages, strict=True)
    ]


def test_each_decision_that_a_file_mentions_exists() -> None:
    assert [*mentions("a (decision 3), Decisions 4, 5 and 9, decisions\n62 to 64")] == [3, 4, 5, 9, 62, 64]
    there, missing = numbers(), list[str]()
    for file in (file for pattern in MENTIONING for file in PROJECT.glob(pattern)):
        text = file.read_text(encoding="utf-8")
        missing += (f"{file}: {number}" for number in mentions(text) if number not in there)
        named = re.findall(r"\b\d{4}-[a-z][a-z0-9-]+\.md\b", text)
        missing += (f"{file}: {name}" for name in named if not (FOLDER / name).exists())
    assert missing == []
