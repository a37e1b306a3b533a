"""Stops everything under a home when the process that started it died.

It runs as `python -m tidemark.local.guard`. A demo that ends, fails or is interrupted stops what it started; one
that is killed cannot. The demo stops its guard last, so the guard only acts after a kill.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tidemark.control import process
from tidemark.local import stack

NAME = "guard"
POLL_S = 0.5


def launch(home: Path) -> None:
    """Launches a guard over the calling process, whose state is in *home*."""
    command = [sys.executable, "-m", "tidemark.local.guard", str(home), str(os.getpid())]
    process.launch(NAME, command, home=home, env={})


def main(home: Path, parent: int) -> None:
    """Waits until *parent* is no longer the parent process, then cleans up."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    stack.stop(stack.Home(home))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
