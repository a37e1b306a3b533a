"""Says why a driver failed: the cause first, stack frames last.

Spark wraps an error in others, and each of them repeats the frames of those inside it, so the line that a person needs
can stand behind thousands of characters. A heartbeat keeps only MOST_OF_A_REASON of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tidemark.errors import TidemarkError
from tidemark.safe_text import without_secrets

MOST_OF_A_REASON = 2_000
"""Most characters of a reason. It is a column of `heartbeats`."""
_PLAN = re.compile(r"=== Streaming Query ===.*?(?=^Caused by: |\Z)", re.DOTALL | re.MULTILINE)
"""The state and the plan of a query, which Spark writes between a message and its frames."""
_TRACEBACK = "Traceback (most recent call last):\n"
_LOST_TASK = re.compile(r"\(TID \d+\) \([^)]*\): ")
"""What Spark writes between the failure of a job and the error of its task."""
_QUERY = re.compile(r"\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: ")
_FRAME = re.compile(r"\s|Traceback |\.\.\. \d|SQLSTATE|Driver stacktrace|JVM stacktrace")


def as_reason(error: Exception) -> str:
    """Returns the reason for a heartbeat: the cause, what the notes of *error* add, other messages, and frames.

    The notes name the record (topic, partition, offset) or the file, and the remedy. An error of Tidemark itself says
    what was found and what to do, and needs no order: it is one line, as status, findings and tasks show it.
    """
    opening, notes = f"{type(error).__name__}: {error}", getattr(error, "__notes__", ())
    if isinstance(error, TidemarkError):
        return _in_one_line(without_secrets("\n".join([opening, *notes])))[:MOST_OF_A_REASON]
    text = f"{opening}\n{_frames_of_the_jvm(error)}"
    cause, messages = _cause_and_messages(text)
    # Plans in Spark's errors have the options of sources.
    return without_secrets("\n".join([*cause, *notes, *messages, *_frames(text)]))[:MOST_OF_A_REASON]


def _in_one_line(text: str) -> str:
    """Returns the lines of *text* as one, with a semicolon between two unless the first announces the second."""
    return re.sub(r"\s*\n\s*", "; ", re.sub(r":\s*\n\s*", ": ", text.strip()))


def cause_line(error: BaseException) -> str:
    """Returns the type of the innermost cause of *error* and the first line of its message."""
    opening = f"{type(error).__name__}: {error}"
    if isinstance(error, TidemarkError):
        return opening.partition("\n")[0]
    cause, _ = _cause_and_messages(f"{opening}\n{_frames_of_the_jvm(error)}")
    return cause[0] if cause else type(error).__name__


def in_short(error: str) -> str:
    """Returns the messages of *error*, the text of an error, in one line: its cause first, and no frames."""
    cause, messages = _cause_and_messages(error)
    return " ".join([*cause, *messages])[:MOST_OF_A_REASON]


def _frames_of_the_jvm(error: BaseException) -> str:
    # PySpark keeps Java's text beside the message, with every `Caused by`, and shows it only on request.
    return str(getattr(error, "_stackTrace", None) or "")


def _cause_and_messages(text: str) -> tuple[list[str], list[str]]:
    """Returns the lines of the innermost error in *text*, and the other lines that are no frames, each once."""
    text = _QUERY.sub("", _PLAN.sub("", text))
    innermost = re.split(r"^Caused by: ", text, flags=re.MULTILINE)[-1]
    _, traceback, error = innermost.rpartition(_TRACEBACK)
    if not traceback:
        error = _LOST_TASK.split(innermost)[-1]
    cause = list(_first_messages(error))
    others = dict.fromkeys(line for line in text.splitlines() if line.strip() and not _FRAME.match(line))
    return cause, [line for line in others if line.removeprefix("Caused by: ") not in cause]


def _first_messages(error: str) -> Iterator[str]:
    """Yields the first lines of *error* that are no frames: a message of one or several lines."""
    has_begun = False
    for line in error.splitlines():
        if not line.strip() or _FRAME.match(line):
            if has_begun:
                return
            continue
        has_begun = True
        yield line


def _frames(text: str) -> Iterator[str]:
    return (line for line in _PLAN.sub("", text).splitlines() if line.strip() and _FRAME.match(line))
