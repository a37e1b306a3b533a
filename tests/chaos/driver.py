"""Runs `jobs/stream.py` until a signal at a given step of a batch.

    python driver.py FILE ARGUMENTS_OF_STREAM...

FILE holds a signal's number and a step, such as `9 committed changes`. It is renamed when the step is reached, and the
signal goes to the driver's whole process group, its JVM included. The steps are those between any two writes of a batch
(stream/write/commit.py) and three that only a driver under Spark has: `planned`, when Spark has logged the offsets;
`reading`, while Spark's tasks run; `done`, before Spark logs that the batch is.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "jobs"))
import stream
from tidemark.stream import query
from tidemark.stream.engine import Collect, Engine
from tidemark.stream.wiring import build_engine

INTO_THE_READING_S = 0.03


def obeying(file: Path) -> Callable[[str], None]:
    """Returns the function to call with each step that is reached."""

    def reached(step: str) -> None:
        try:
            number, wanted = file.read_text().split(" ", 1)
        except FileNotFoundError:
            return
        if step == wanted:
            file.rename(file.with_suffix(".reached"))
            os.killpg(0, int(number))

    return reached


def watched(reached: Callable[[str], None]) -> Callable[..., Engine]:
    """`build_engine`, of an engine whose steps are *reached*."""

    def build(*arguments: Any, **options: Any) -> Engine:
        engine = build_engine(*arguments, **{**options, "fence": replace(options["fence"], reached=reached)})
        process = engine.process

        def process_watched(batch_id: int, collect: Collect, *more: Any, **planned: Any) -> None:
            def collect_watched() -> Any:
                threading.Timer(INTO_THE_READING_S, reached, ["reading"]).start()
                return collect()

            reached("planned")
            if engine._shards:
                threading.Timer(INTO_THE_READING_S, reached, ["reading"]).start()
            process(batch_id, collect_watched, *more, **planned)
            reached("done")

        engine.process = process_watched  # type: ignore[method-assign, assignment]
        return engine

    return build


if __name__ == "__main__":
    told = Path(sys.argv.pop(1))
    query.build_engine = watched(obeying(told))  # type: ignore[assignment]
    sys.exit(stream.main())
