"""`tidemark replay`: play real flights into the local broker; its options are those of `jobs/replay.py`."""

from __future__ import annotations

import argparse
import os
import sys

from tidemark.cli.local import running_broker
from tidemark.spec.project import CHECKOUT


def add_options(_: argparse.ArgumentParser) -> None:
    """It takes what the job takes."""


def command(options: argparse.Namespace) -> int:
    """Become the job."""
    job = [sys.executable, str(CHECKOUT / "jobs" / "replay.py")]
    if (address := running_broker(options.home)) is not None:
        job += ["--bootstrap", address]
    os.execv(sys.executable, [*job, *options.rest])
