"""Links between pages lead somewhere, and so do addresses of pages in code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
LINK = re.compile(r"(?<!`)\[[^\[\]]*\]\(([^()\s]+)\)")
IN_CODE = re.compile(r"\bdocs/[\w./-]+\.(?:md|jsonl|json)(?:#[\w-]+)?")
ROOMS = ("jobs", "plugins", "dags", "tests", "docker")


@cache
def anchors(page: Path) -> set[str]:
    """Returns the names of the headings of *page*, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(address: str, folder: Path) -> bool:
    """Returns True if *address*, relative to *folder*, has no file or no heading."""
    name, _, anchor = address.partition("#")
    page = (folder / name).resolve()
    return not page.exists() or (bool(anchor) and anchor not in anchors(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link if not link.startswith("#") else page.name + link for link in LINK.findall(text)]
    own = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in own if leads_nowhere(link, page.parent)] == []


def test_addresses_of_pages_in_code_lead_somewhere() -> None:
    files = [file for room in ROOMS for file in (PROJECT / room).rglob("*.py")] + [PROJECT / "Makefile"]
    named = {(file.name, address) for file in files for address in IN_CODE.findall(file.read_text(encoding="utf-8"))}
    assert [each for each in sorted(named) if leads_nowhere(each[1], PROJECT)] == []
