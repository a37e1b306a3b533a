"""Counts requests in the server's log by Amazon's kinds of charge."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tidemark.storage.location import location

_REQUEST = re.compile(r'"(?:\x1b\[[0-9;]*m)*(?P<method>[A-Z]+) (?P<url>\S+) HTTP/1')
"""The server colours those that it refuses."""
PUT, LIST, GET = "PUT", "LIST", "GET"
KINDS = {"PUT": PUT, "POST": PUT, "GET": GET, "HEAD": GET}
"""A DELETE costs nothing."""


class Requests:
    """Counts the requests about *warehouse* in *log*.

    Reads of heartbeats are left out: tests read them while they wait.
    """

    def __init__(self, log: Path, warehouse: Path) -> None:
        assert location(str(warehouse)) == warehouse
        self._log, self._names = log, str(warehouse).split("/")[3]
        self._read = 0

    def since_last(self) -> Counter[str]:
        """Returns the requests since the last call."""
        lines = self._log.read_text().splitlines()
        new, self._read = lines[self._read :], len(lines)
        found = [match for line in new if self._names in line and (match := _REQUEST.search(line))]
        found = [match for match in found if (match["method"], match["url"][-14:]) != ("GET", "heartbeat.json")]
        return Counter(
            LIST if "list-type" in match["url"] else KINDS[match["method"]]
            for match in found
            if match["method"] != "DELETE"
        )
