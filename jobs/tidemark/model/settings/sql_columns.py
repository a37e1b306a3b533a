"""Recognizes SQL of a `select` that only hands on a column."""

from __future__ import annotations


def column_in(sql: str) -> str:
    """Returns the name of the column that *sql* is, which may be in quotes and parentheses.

    Of any other SQL it returns a text that is no column's name.

    >>> column_in(' ("Seen") '), column_in("seen + 1")
    ('seen', 'seen + 1')
    """
    text = sql.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    # Names of columns are in lower case, and SQL ignores the case of letters.
    return text.removeprefix('"').removesuffix('"').lower()
