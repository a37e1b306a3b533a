"""Makes text of others harmless for terminals and logs."""

from __future__ import annotations

import json
import logging


def inert(text: str) -> str:
    r"""Returns *text* without commands to a terminal.

    Characters that a terminal does not show are written as JSON escapes them.

    >>> inert("\x1b[31mred → ")
    '\\u001b[31mred → '
    """
    if text.isprintable():
        return text
    shown = (char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)
    return "".join(shown).replace("\x7f", r"\u007f")  # the one control character that JSON lets pass


def one_line(text: str) -> str:
    r"""Returns *text*, inert, in one line: `\n` stands for each line break.

    >>> print(one_line("late\nforged"))
    late\nforged
    """
    return inert(text).replace("\n", r"\n")


def one_message(text: str) -> str:
    r"""Returns *text*, inert, with all lines but the first indented.

    So none of them looks like a message of its own.

    >>> one_message("late\nforged")
    'late\n  forged'
    """
    return inert(text).replace("\n", "\n  ")


class _OneMessage(logging.Formatter):
    """Formats each record, with the trace of its exception, as one message."""

    def format(self, record: logging.LogRecord) -> str:
        return one_message(super().format(record))


def log_to_stderr(*, by_thread: bool = False) -> None:
    """Makes the program log to stderr, *by_thread* with the thread's name.

    A line that begins with an instant is one that the program wrote: text of others is indented or escaped.
    """
    thread = " %(threadName)s" if by_thread else ""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneMessage(f"%(asctime)s %(levelname)s{thread} %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # a line for each call from the JVM, once a second
