"""Plays batches in a process of its own, and names a step.

    python -m objectstore.far_writer WAREHOUSE STEP

It plays batch 0. Within batch 1 it prints a line at STEP (`begun` or a step of a batch), and continues after a line of
its input. Then it plays batch 2. As a driver with Spark, it ends with 3 if another driver is the newer one, and with 1
if the store does not answer. Its environment names the store.
"""

from __future__ import annotations

import sys

from objectstore.test_engine import T, drive, play_batch

from support.play import Play
from support.topologies import NEWEST_SENT
from tidemark.errors import Contradiction
from tidemark.storage.location import location


def main(warehouse: str, wanted: str) -> int:
    play = Play(NEWEST_SENT, location(warehouse))

    def reached(step: str) -> None:
        if step == wanted and play.now_ms == T + 1_000:
            sys.stdout.write("reached\n")
            sys.stdout.flush()
            sys.stdin.readline()

    drive(play, reached=reached)
    play_batch(play, 0)
    play.now_ms = T + 1_000
    reached("begun")
    try:
        for number in (1, 2):
            play_batch(play, number)
    except Contradiction as error:
        sys.stdout.write(f"{error}\n")
        return 3
    except OSError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
