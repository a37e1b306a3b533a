"""Adds arguments of several commands, and finds their tables."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Iterable
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import WAREHOUSE
from tidemark.model.settings.intervals import instants_ms
from tidemark.storage.delta.format import refuse_older
from tidemark.storage.location import is_missing, location

LAST_OFFSET = 2**63 - 1
"""Kafka's offsets have 64 bits, one of them for the sign."""


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Adds the argument for one topology."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="name of the topology, or its TOML file")


def add_format(parser: argparse.ArgumentParser, formats: Iterable[str]) -> None:
    """Adds the option for a format of the output; `table` by default."""
    parser.add_argument(
        "--format", choices=tuple(formats), default="table", help="format of the output (default: %(default)s)"
    )


def whole_number(text: str) -> int:
    """Reads the number of a partition, or an offset.

    Raises:
        InvalidArgument: it is not a number from 0 to 2⁶³ − 1 in decimal digits.

    >>> whole_number("12")
    12
    """
    if not re.fullmatch("[0-9]+", text) or int(text) > LAST_OFFSET:
        msg = f"partitions and offsets are whole numbers from 0 on, got {text!r}; write, for example, 12"
        raise InvalidArgument(msg)
    return int(text)


def seconds(text: str) -> float:
    """Reads a length in seconds, which may have a fraction.

    Raises:
        InvalidArgument: it is not a number above 0, or is longer than a thread can wait.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < threading.TIMEOUT_MAX:
        msg = f"{text!r} is not a number of seconds above 0; for example 60"
        raise InvalidArgument(msg)
    return number


def span_ms(options: argparse.Namespace) -> tuple[int | None, int | None]:
    """Returns `start` and `end` of *options*, epoch ms; None: not given."""
    return instants_ms(options.start, options.end)


def place(options: argparse.Namespace) -> Path:
    """Returns the warehouse, which may not exist yet."""
    folder: Path = options.warehouse or location(str(options.home.resolve() / WAREHOUSE))
    return folder


def existing_warehouse(options: argparse.Namespace) -> Path:
    """Returns the warehouse.

    Raises:
        InvalidArgument: the folder does not exist.
        OtherFormat: it has an older format.
    """
    folder: Path = options.warehouse or location(str(options.home / WAREHOUSE))
    if is_missing(folder):
        msg = (
            f"{folder}: no such folder: nothing has run yet (`tidemark up` starts streams), or choose another with "
            "--home or --warehouse"
        )
        raise InvalidArgument(msg)
    refuse_older(folder)
    return folder
