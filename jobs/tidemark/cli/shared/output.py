"""Prints the output of a command, whose reader may close the pipe.

`head -1` does so, for example.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tidemark.safe_text import inert


def say(text: str, stream: TextIO | None = None) -> None:
    """Prints *text* to *stream* (default: standard output).

    It prints nothing after the reader has closed the pipe.
    """
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        _discard(stream)


def say_inert(text: str) -> None:
    """Prints *text*, with control characters of a terminal escaped."""
    say(inert(text))


def flush() -> None:
    """Flushes both output streams."""
    # Otherwise the interpreter does so at exit, and fails on a closed pipe.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    """Discards all further output to *stream*."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
