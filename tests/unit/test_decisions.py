"""The index of decisions has each page by its title."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"


def test_the_index_has_the_title_of_each_decision() -> None:
    pages = sorted(FOLDER.glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ") for page in pages]
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\* \[(.+)\]\((.+)\)$", index, re.MULTILINE) == [
        (title, page.name) for title, page in zip(titles, pages, strict=True)
    ]
