"""Runs `tidemark` commands within this process."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from tidemark.cli.main import main


class CommandOutput(NamedTuple):
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


def tidemark(folder: Path, *words: str, **variables: str) -> CommandOutput:
    """Runs the command *words* in *folder*.

    Of the settings in the environment it has only *variables*, and no PATH.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
            patch.delenv(name)
        for name, value in {"PATH": "", **variables}.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["tidemark", *words])
        patch.chdir(folder)
        try:
            code = main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return CommandOutput(code, out.getvalue(), err.getvalue())
