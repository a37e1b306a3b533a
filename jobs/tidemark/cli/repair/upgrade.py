"""`tidemark upgrade`: says whether the warehouse has the format that this version writes."""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.errors import InvalidArgument
from tidemark.storage.delta.format import FILE, FORMAT, VERSION, warehouse_stamp


def add_options(_: argparse.ArgumentParser) -> None:
    """Adds nothing: the command has no arguments."""


def command(options: argparse.Namespace) -> int:
    """Prints the format of the warehouse.

    Raises:
        OtherFormat: the warehouse has another format.
        InvalidArgument: the warehouse has no stamp, or a damaged one.
    """
    warehouse = existing_warehouse(options)
    stamp = warehouse_stamp(warehouse)
    if stamp is None:
        msg = (
            f"{warehouse / FILE} is missing, but Tidemark {VERSION} expects it with format {FORMAT}; the first driver "
            "or job that writes to this warehouse makes it (docs/upgrades.md)"
        )
        raise InvalidArgument(msg)
    stamp.refuse_other(warehouse)
    say_inert(f"{warehouse} has format {FORMAT}, which Tidemark {VERSION} writes: there is nothing to upgrade")
    return 0
