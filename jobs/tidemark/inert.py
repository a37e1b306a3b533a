"""Text of others, of which nothing is to obey anything."""

from __future__ import annotations

import json
import logging


def inert(text: str) -> str:
    r"""*text* in which a terminal finds no command: what it would not show is written as JSON escapes it.

    >>> inert("\x1b[31mred → ")
    '\\u001b[31mred → '
    """
    shown = (char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    return "".join(shown).replace("\x7f", r"\u007f")  # the one control character that JSON lets pass


def one_line(text: str) -> str:
    r"""*text*, inert, in one line: where it begins another it has `\n`.

    >>> print(one_line("late\nforged"))
    late\nforged
    """
    return inert(text).replace("\n", r"\n")


def one_message(text: str) -> str:
    r"""*text*, inert, in which every line but the first is indented: none looks like a message of its own.

    >>> one_message("late\nforged")
    'late\n  forged'
    """
    return inert(text).replace("\n", "\n  ")


class _OneMessage(logging.Formatter):
    """Formats each record, with the trace of its exception, as one message."""

    def format(self, record: logging.LogRecord) -> str:
        return one_message(super().format(record))


def log_to_stderr() -> None:
    """Have the program log to stderr; a line that begins with an instant is one that the program wrote."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneMessage("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # a line for each call from the JVM, once a second
