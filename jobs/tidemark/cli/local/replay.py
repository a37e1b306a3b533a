"""`tidemark replay`: plays real flights into the local broker.

Its options are those of `jobs/replay.py`.
"""

from __future__ import annotations

import argparse
import os
import sys

from tidemark.cli.shared.local import running_broker
from tidemark.model.project.files import CHECKOUT


def add_options(_: argparse.ArgumentParser) -> None:
    """Adds nothing: the job reads the arguments."""


def command(options: argparse.Namespace) -> int:
    """Replaces this process by the job."""
    job = [sys.executable, str(CHECKOUT / "jobs" / "replay.py")]
    if (address := running_broker(options.home)) is not None:
        job += ["--bootstrap", address]
    os.execv(sys.executable, [*job, *options.rest])
