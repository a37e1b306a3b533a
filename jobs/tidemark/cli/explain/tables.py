"""`tidemark tables`: which Delta tables there are, and how large they are."""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.query.inventory import StoredTable, inventory
from tidemark.query.text_table import format_table


def add_options(_: argparse.ArgumentParser) -> None:
    """It takes none."""


def command(options: argparse.Namespace) -> int:
    """Show them."""
    say_inert(format_table(StoredTable._fields, inventory(existing_warehouse(options))))
    return 0
