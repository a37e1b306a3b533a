"""Exit status 0 when the JSON at URL has VALUE under the dotted KEY: for health checks, in images without curl."""

from __future__ import annotations

import json
import sys
import urllib.request
from functools import reduce
from typing import Any

TIMEOUT_S = 5


def main(url: str, key: str, value: str) -> int:
    """Returns the exit status; writes what was found instead of *value*."""
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        found: Any = reduce(lambda part, name: part[name], key.split("."), json.load(answer))
    if found == value:
        return 0
    sys.stderr.write(f"{key} is {found!r} at {url}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
