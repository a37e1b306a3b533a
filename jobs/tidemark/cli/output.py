"""What a command prints: to somebody who may stop reading, as `head -1` does."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(text: str, stream: TextIO | None = None) -> None:
    """Print *text* to *stream* (standard output); nothing once nobody reads it any more."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        _discard(stream)


def flush() -> None:
    """Write what is left to be written, which the interpreter would fail to do at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    """Have all that *stream* still gets thrown away."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
