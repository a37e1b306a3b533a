"""Text of others, of which nothing is to obey anything."""

from __future__ import annotations

import json


def inert(text: str) -> str:
    r"""*text* in which a terminal finds no command: what it would not show is written as JSON escapes it.

    >>> inert("\x1b[31mred → ")
    '\\u001b[31mred → '
    """
    shown = (char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    return "".join(shown).replace("\x7f", r"\u007f")  # the one control character that JSON lets pass
