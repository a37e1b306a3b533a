"""Stops everything under a home when the process that started it has died: `python -m tidemark.embedded.guard`.

A demo that ends, fails or is interrupted stops what it started; one that is killed cannot. Whoever launches the guard
stops it by its name; only a death that nobody saw leaves it to do its work.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tidemark.embedded import process, stack

NAME = "guard"
POLL_S = 0.5


def launch(home: Path) -> None:
    """Watch over the calling process, whose state lies in *home*."""
    watched = process.this()
    command = [sys.executable, "-m", __name__, str(home), str(watched.pid), str(watched.started)]
    process.launch(NAME, command, home=home, env={})


def main(home: Path, watched: process.Process) -> None:
    """Wait for the end of *watched*, then clean up."""
    while process.is_alive(watched):
        time.sleep(POLL_S)
    stack.stop(stack.Home(home))


if __name__ == "__main__":
    main(Path(sys.argv[1]), process.Process("watched", int(sys.argv[2]), int(sys.argv[3]), Path()))
