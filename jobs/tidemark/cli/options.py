"""What several commands take, and how they find the tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.object_path import ObjectPath
from tidemark.spec.project import WAREHOUSE


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Ask for one topology."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="its name, or its TOML file")


def add_slow(parser: argparse.ArgumentParser, *default: str) -> None:
    """Ask which operators are to be slow."""
    text = f"make an operator sleep after each batch, to see an SLA break ({' '.join(default) or 'none'})"
    parser.add_argument("--slow", nargs="*", default=list(default), metavar="OPERATOR=MS", help=text)


def place(options: argparse.Namespace) -> Path:
    """Where the tables are or will be."""
    found: Path = options.warehouse or options.home.resolve() / WAREHOUSE
    return found


def warehouse(options: argparse.Namespace) -> Path:
    """Where the tables are; raises InvalidArgument for a folder that is not there, which an object store cannot say."""
    found: Path = options.warehouse or options.home / WAREHOUSE
    if not isinstance(found, ObjectPath) and not found.is_dir():
        msg = f"{found}: there is no such folder, and no warehouse; --home or --warehouse names another place"
        raise InvalidArgument(msg)
    return found
