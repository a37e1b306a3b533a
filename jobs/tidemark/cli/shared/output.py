"""Prints the output of a command, whose reader may close the pipe.

`head -1` does so, for example.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping
from itertools import chain
from typing import TextIO

from tidemark.safe_text import inert
from tidemark.selection import omit

COMMAND = re.compile("`tidemark (?P<name>[a-z-]+)")
"""Matches the beginning of a command in backticks that names no place yet."""


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


def say_with_commands(text: str, options: argparse.Namespace) -> None:
    """Prints *text* as `say_inert`, with commands that find what the command line *options* has found."""
    say_inert(with_place(text, options))


def with_place(text: str, options: argparse.Namespace) -> str:
    """Returns *text* with the options `--home` and `--warehouse` of *options* in each of its commands.

    So a person can type the commands as they are. `up` writes into the warehouse of its state folder alone.

    >>> options = argparse.Namespace(named_place={"--home": "/srv/a b", "--warehouse": "/lake"})
    >>> print(with_place("`tidemark logs shop/top` shows why", options))
    `tidemark --home '/srv/a b' --warehouse /lake logs shop/top` shows why
    >>> print(with_place("`tidemark up shop` starts it", options))
    `tidemark --home '/srv/a b' up shop` starts it
    """
    place: Mapping[str, str] = getattr(options, "named_place", {})

    def beginning(command: re.Match[str]) -> str:
        known = omit(place, {"--warehouse"}) if command["name"] == "up" else place
        return f"`{shlex.join(['tidemark', *chain.from_iterable(known.items()), command['name']])}"

    return COMMAND.sub(beginning, text)


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
