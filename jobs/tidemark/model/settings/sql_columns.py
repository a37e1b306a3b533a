"""Recognizes SQL of a `select` that only hands on a column."""

from __future__ import annotations


def column_in(sql: str) -> str:
    """Returns the name of a column if *sql* is nothing else, perhaps in quotes and parentheses.

    For any other SQL the result is a text that cannot be the name of a column.

    >>> column_in(' ("Seen") '), column_in("seen + 1")
    ('seen', 'seen + 1')
    """
    text = sql.strip()
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1].strip()
    # Names of columns are in lower case, and SQL ignores the case of letters.
    return text.removeprefix('"').removesuffix('"').lower()
