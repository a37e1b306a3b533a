"""Standard output of a command, whose reader may close the pipe, as `head -1` does."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tidemark.inert import inert


def say(text: str, stream: TextIO | None = None) -> None:
    """Print *text* to *stream* (standard output); nothing after its reader has closed the pipe."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        _discard(stream)


def say_inert(text: str) -> None:
    """Print *text* with whatever would move a terminal's cursor in it written out."""
    say(inert(text))


def flush() -> None:
    """Flush both streams now: at exit the interpreter would fail on a closed pipe."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    """Discard all further output to *stream*."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
