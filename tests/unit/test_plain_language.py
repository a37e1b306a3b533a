"""The plain-language lint reads prose, and leaves code and data alone."""

from __future__ import annotations

from pathlib import Path

from plain_language import Complaint, check_page, check_test_prose

TOLD = "says 'told'; name who does what"


def complaints(folder: Path, source: str) -> list[Complaint]:
    """Returns the complaints about a test file."""
    (folder / "test_a.py").write_text(source)
    return [*check_test_prose(folder / "test_a.py")]


def test_a_page_has_no_refused_word_outside_of_its_code() -> None:
    page = "# Page\n\nDrivers are told.\n\n```sql\nSELECT told\n```\n\nColumn `told`, and nobody.\n"
    assert [*check_page(page)] == [(3, TOLD), (9, "says 'nobody'; name who does what")]


def test_a_test_file_has_no_refused_word_in_its_docstrings(tmp_path: Path) -> None:
    source = 'def test_a() -> None:\n    """Returns.\n\n    A driver is told.\n    """\n    assert "nobody is told"\n'
    assert complaints(tmp_path, source) == [(2, TOLD)]


def test_first_lines_of_test_files_are_short_and_open_plainly(tmp_path: Path) -> None:
    source = '"""What is one two three four five six seven eight nine ten eleven."""\n'
    assert [complaint for _, complaint in complaints(tmp_path, source)] == [
        "begins with 'what'; begin with a verb, or with the noun it describes",
        "first line has 13 words; 12 at most",
    ]
