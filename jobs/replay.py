"""Plays real flights of 2013 into Kafka.

Writes progress to the error output, and one line of JSON to the output at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from tidemark.cli.shared.output import flush, say
from tidemark.demo import publish
from tidemark.errors import TidemarkError


def main() -> None:
    """Plays the flights, and prints a summary.

    It continues when the reader of standard output has closed its pipe.
    """
    try:
        _main()
    finally:
        flush()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    publish.add_arguments(parser)
    options = parser.parse_args()
    try:
        summary = publish.run(options, clock_ms=lambda: time.time_ns() // 1_000_000, report=_say)
    except TidemarkError as error:
        sys.exit(f"replay: {error}")
    except KeyboardInterrupt:
        sys.exit("replay: interrupted; what was acknowledged so far stays")
    say(json.dumps(summary))


def _say(line: str) -> None:
    say(line, sys.stderr)


if __name__ == "__main__":
    main()
