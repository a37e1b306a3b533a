"""`tidemark watch`: shows how old Delta tables are that any program writes, and who writes them.

It returns 0 if all tables keep the limit, and 1 if one breaks it, is not known to keep it, or cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemark.cli.shared.options import add_format
from tidemark.cli.shared.output import say, say_inert
from tidemark.clock import wall_clock_ms
from tidemark.errors import InvalidArgument, argument_type
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import duration_ms
from tidemark.safe_text import inert
from tidemark.semantics.sla import Verdict
from tidemark.storage.location import location, replace
from tidemark.watch.commits import History, Unreadable
from tidemark.watch.documents import as_json, as_page, as_text
from tidemark.watch.kept import KeptHistories
from tidemark.watch.reading import watched
from tidemark.watch.rules import table_age
from tidemark.watch.statistics import TimeColumnRequest

NOT_KEPT = "none"
"""The folder that stands for none."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    places = "Delta table, or folder with tables at any depth: a path, or a URL such as s3://BUCKET/FOLDER"
    parser.add_argument("places", metavar="PLACE", nargs="+", type=argument_type(location), help=places)
    parser.add_argument(
        "--limit", metavar="LENGTH", type=argument_type(_length_ms), help='such as "1 h": judge ages by it'
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        action="append",
        default=[],
        help="column of event times; of several names the first that a table has (default: its only one of timestamps)",
    )
    parser.add_argument(
        "--over",
        metavar="LENGTH",
        type=argument_type(_length_ms),
        default="1 d",
        help="interval until now of the peak age (default: %(default)s)",
    )
    parser.add_argument(
        "--timezone",
        metavar="ZONE",
        type=argument_type(_zone),
        default="UTC",
        help="of times that have none, such as Europe/Berlin (default: %(default)s)",
    )
    add_format(parser, ("table", "json"))
    kept = "what was read of each table is kept here for the next run, or `none` (default: `watch` in the state folder)"
    parser.add_argument("--kept", metavar="FOLDER", help=kept)
    page = "also write a page to this file"
    parser.add_argument("--html", metavar="FILE", type=argument_type(_new_file), help=page)


def _length_ms(text: str) -> int:
    if length_ms := duration_ms(text):
        return length_ms
    msg = f'a length has a number above 0 and a unit (ms, s, min, h, d), got {text!r}; write, for example, "1 h"'
    raise InvalidArgument(msg)


def _new_file(text: str) -> Path:
    if not Path(text).parent.is_dir() or Path(text).is_dir():
        msg = f"a page is a file in a folder that exists, got {text!r}; make the folder, or name another file"
        raise InvalidArgument(msg)
    return Path(text)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = f"there is no time zone {name!r}; write, for example, Europe/Berlin"
        raise InvalidArgument(msg) from error


def command(options: argparse.Namespace) -> int:
    """Prints what the logs of the tables say."""
    now_ms = wall_clock_ms()
    since_ms = now_ms - options.over
    kept = None if options.kept == NOT_KEPT else KeptHistories(Path(options.kept or options.home / "watch"))
    histories = watched(options.places, TimeColumnRequest(tuple(options.column), options.timezone), since_ms, kept)
    if kept is not None and kept.refused:
        remedy = f"name another folder with --kept, or write --kept {NOT_KEPT}"
        say(inert(f"tidemark watch: nothing was kept for the next run: {kept.refused}; {remedy}"), sys.stderr)
    if options.warehouse is not None:
        # To import what writes tables takes longer than to read a log.
        from tidemark.watch.ages import record_ages

        read = [each for each in histories if isinstance(each, History)]
        record_ages(Layout(options.warehouse), read, now_ms)
    found = [
        each
        if isinstance(each, Unreadable)
        else table_age(each, now_ms=now_ms, since_ms=since_ms, limit_ms=options.limit)
        for each in histories
    ]
    if options.html:
        replace(options.html, as_page(found, now_ms=now_ms, limit_ms=options.limit))
    if options.format == "json":
        say(as_json(found, now_ms=now_ms, limit_ms=options.limit))
    else:
        say_inert(as_text(found))
    is_fine = all(not isinstance(each, Unreadable) and each.verdict in {None, Verdict.PASS} for each in found)
    return 0 if is_fine else 1
