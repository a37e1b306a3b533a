"""Disturbs real drivers and checks their tables: `make chaos KILLS=N SEED=S`.

Records flow through a real broker into two sub-topologies. One fault after the other happens to them; after each, when
the drivers have done with all that was sent, every law of `checks.py` must hold of all tables.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import SystemRandom

from chaos.checks import Left, broken
from chaos.faults import Draw, Fault
from chaos.stage import SUBS, Stage

from tidemark.storage.location import location


def main() -> int:
    """Exit status: 0 all passed, 1 something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="how many faults (%(default)s)")
    parser.add_argument("--seed", type=int, help="draws the same faults and records again (default: any)")
    parser.add_argument("--shards", type=int, default=1, help="in which the operators of each driver run (%(default)s)")
    parser.add_argument("--warehouse", type=location, help="a new folder in an object store (default: on this disk)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    say(f"chaos: {options.kills} faults, seed {seed}, shards {options.shards}")
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tidemark-chaos-") as home,
            Stage(Path(home), seed, options.shards, warehouse=options.warehouse) as stage,
        ):
            drawn = Draw(seed).faults(disk=not stage.is_in_store)
            failed = run(stage, itertools.islice(drawn, options.kills))
    except Exception:
        traceback.print_exc()
        say("nothing was tried to its end")
        failed = options.kills + 1
    say(f"{options.kills + 1 - failed} passed, {failed} failed")
    if failed:
        say(f"again: make chaos KILLS={options.kills} SEED={seed} SHARDS={options.shards}")
    return 1 if failed else 0


def run(stage: Stage, faults: Iterable[Fault]) -> int:
    """Runs *faults* and returns how many failed.

    Last, the drivers are drained, as if that were one more fault.
    """
    with stage.flow:
        stage.pause(1)
    stage.settle()
    failed = number = 0
    for number, fault in enumerate(faults, 1):
        problems = verdict(number, fault.name, stage, partial(trouble, stage, fault))
        if problems:
            failed += 1
            for sub in SUBS:
                stage.restart(sub)
    return failed + bool(verdict(number + 1, "a drain of both", stage, partial(trouble_in_the_end, stage)))


def verdict(number: int, name: str, stage: Stage, look: Callable[[], list[str]]) -> list[str]:
    """Prints and returns the errors that *look* finds."""
    began_s, stage.ended = time.monotonic(), []
    problems = look()
    told = "FAILED" if problems else ", ".join(["passed", *stage.ended])
    say(f"{number:4} {name}: {told} ({time.monotonic() - began_s:.1f} s)", *problems)
    return problems


def trouble(stage: Stage, fault: Fault) -> list[str]:
    """Returns the errors after *fault*."""
    try:
        with stage.flow:
            fault.happen(stage)
        stage.settle(may_end=fault.may_end)
        return broken(Left(stage))
    except Exception as error:  # the next fault may tell more
        return [f"{type(error).__name__}: {error}"]


def trouble_in_the_end(stage: Stage) -> list[str]:
    """Returns the errors after the drain, including those of `tidemark doctor`."""
    found = []
    for sub in SUBS:
        if (status := stage.drivers[sub].drain()) != 0:
            found.append(f"the driver of {sub} must end with 0, and ended with {status}")
        found += stage.findings(sub)
    return found


def say(*lines: str) -> None:
    """Print *lines* at once."""
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
