"""Runs a task of a new shard twice and prints its use."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark import cloudpickle


class Most:
    """Peak of the process's own memory while it was watched, MB."""

    def __init__(self) -> None:
        self.mb, self._ended = 0.0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.mb = max(self.mb, own_mb())

    def end(self) -> float:
        self._ended.set()
        return max(self.mb, own_mb())


def own_mb() -> float:
    """Memory of this process that no file is behind."""
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main(file: str) -> None:
    working, dealt = cloudpickle.loads(Path(file).read_bytes())
    took: dict[str, Any] = {"before_mb": own_mb()}
    most = Most()
    for name in ("first_s", "next_s"):
        began_s, at_s = time.process_time(), time.perf_counter()
        worked = working(0, dealt)
        took |= {name: time.process_time() - began_s, f"{name}_wall": time.perf_counter() - at_s}
    assert worked.is_news
    sys.stdout.write(json.dumps({**took, "most_mb": most.end()}))


if __name__ == "__main__":
    main(sys.argv[1])
