"""Makes text of others harmless for terminals and logs, and hides secrets."""

from __future__ import annotations

import json
import logging
import re

LEAST = 6
"""Shortest secret that is hidden; shorter ones are parts of words."""
_LINE = 20
"""Shortest line of a PEM file that is hidden."""
_HIDDEN: set[str] = set()
"""Forms of the secrets that this process has looked up."""


def hide(secret: str) -> None:
    """Has `without_secrets` hide *secret* from now on.

    A text of several lines, such as a key, is hidden line by line, too.
    """
    if len(secret) < LEAST:
        return
    quoted = secret.replace("\\", "\\\\").replace('"', '\\"')
    lines = {line for line in secret.splitlines() if len(line) >= _LINE and not line.startswith("-----")}
    _HIDDEN.update({secret, quoted, json.dumps(secret)[1:-1]}, lines if "\n" in secret else ())


def without_secrets(text: str) -> str:
    """Returns *text* with asterisks in the place of each hidden secret."""
    # The longest first: a secret may contain another one.
    for form in sorted([*_HIDDEN], key=len, reverse=True):
        text = text.replace(form, "*****")
    return text


def is_text(text: str) -> bool:
    r"""Returns False if *text* has half a character (a surrogate), which no file and no table can keep.

    JSON may have surrogates, and Python makes them of bytes in a command line that are not UTF-8.

    >>> is_text("ü"), is_text("\udcff")
    (True, False)
    """
    return not re.search("[\ud800-\udfff]", text)


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


def as_code(text: str) -> str:
    """Returns *text* between backticks, as code in a line of Markdown.

    *text* neither begins nor ends with a backtick.

    >>> print(as_code("tidemark why flights"), as_code("echo 'a`b'"))
    `tidemark why flights` ``echo 'a`b'``
    """
    marks = backticks_for(text)
    return f"{marks}{text}{marks}"


def backticks_for(text: str, at_least: int = 1) -> str:
    """Returns the backticks that enclose *text* as code.

    One more than its longest run of backticks.
    """
    return "`" * max(at_least, *(len(run) + 1 for run in re.findall("`*", text)))


class _OneMessage(logging.Formatter):
    """Formats each record, with the trace of its exception, as one message."""

    def format(self, record: logging.LogRecord) -> str:
        return one_message(without_secrets(super().format(record)))


def log_to_stderr(*, by_thread: bool = False) -> None:
    """Makes the program log to stderr, *by_thread* with the thread's name.

    Only lines of the program itself begin with an instant. Foreign text is indented or escaped, so that nobody can fake
    one. Secrets are hidden.
    """
    thread = " %(threadName)s" if by_thread else ""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneMessage(f"%(asctime)s %(levelname)s{thread} %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)  # a line for each call from the JVM, once a second
