"""`tidemark schema`: prints or writes JSON Schemas of files, for editors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tidemark.cli.export.file_schemas import FORMS, schema_of
from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument

ALL = "all"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("file", nargs="?", choices=(*FORMS, ALL), default=ALL, help="kind of file (default: all)")
    folder = "writes NAME.schema.json of each kind into this folder, in place of printing"
    parser.add_argument("--into", type=Path, metavar="FOLDER", help=folder)


def command(options: argparse.Namespace) -> int:
    """Prints or writes the schemas.

    Raises InvalidArgument if the folder cannot be written.
    """
    chosen = {name: schema_of(name) for name in FORMS if options.file in {name, ALL}}
    if options.into is None:
        printed = chosen if options.file == ALL else chosen[options.file]
        say_inert(json.dumps(printed, indent=2))
        return 0
    try:
        options.into.mkdir(parents=True, exist_ok=True)
        for name, form in chosen.items():
            path = options.into / f"{name}.schema.json"
            path.write_text(json.dumps(form, indent=2) + "\n", encoding="utf-8")
            say(f"wrote {path}")
    except OSError as error:
        msg = f"--into {options.into}: {error.strerror}; give a folder that this user can write"
        raise InvalidArgument(msg) from error
    return 0
