"""Stops everything under a home when the process that started it has died: `python -m tidemark.embedded.guard`.

A demo that ends, fails or is interrupted stops what it started; one that is killed cannot. The demo stops its guard
last, so that only a death that nobody could answer leaves the guard to do its work.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tidemark.embedded import process, stack

NAME = "guard"
POLL_S = 0.5


def launch(home: Path) -> None:
    """Watch over the calling process, whose state lies in *home*."""
    command = [sys.executable, "-m", "tidemark.embedded.guard", str(home), str(os.getpid())]
    process.launch(NAME, command, home=home, env={})


def main(home: Path, parent: int) -> None:
    """Wait until *parent* is not the parent of this process any more, then clean up."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    stack.stop(stack.Home(home))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
