"""A driver without Spark: takes the lease and beats until it is drained, as `jobs/stream.py` does.

What it does beyond that is said by a file `behaviour` in the control folder: `fail`, `hang`, `rotate`, `ignore drain`.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tidemark.control import AlreadyRunning, Control, Heartbeat, StreamState
from tidemark.spec.layout import Layout


def main() -> int:
    parser = argparse.ArgumentParser()
    for option in ("--warehouse", "--topology", "--sub-topology", "--bootstrap", "--launch-id"):
        parser.add_argument(option, required=True)
    parser.add_argument("--slow", action="append", default=[])
    parser.add_argument("--rotate-after")
    args = parser.parse_args()
    control = Control(Layout(Path(args.warehouse)).control(Path(args.topology).stem, args.sub_topology))
    try:
        epoch = control.acquire()
    except AlreadyRunning:
        return 3
    (control.home / "seen.json").write_text(json.dumps({"env": dict(os.environ), "slow": args.slow}))
    asked = control.home / "behaviour"
    behaviour = asked.read_text() if asked.exists() else ""

    def beat(state: StreamState, reason: str | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        control.beat(
            Heartbeat(state=state, epoch=epoch, launch_id=args.launch_id, at_ms=now_ms, pid=os.getpid(), reason=reason)
        )

    if behaviour == "fail":
        sys.stdout.write("the topic is gone\n")
        beat(StreamState.FAILED, "no topic flight_events")
        return 1
    beat(StreamState.RUNNING)
    if behaviour == "rotate" and args.rotate_after == "100" and epoch == 1:
        beat(StreamState.ROTATED)
        return 0
    if behaviour == "hang":
        time.sleep(60)
    while behaviour == "ignore drain" or not control.drain_requested():
        beat(StreamState.RUNNING)
        time.sleep(0.05)
    beat(StreamState.DRAINED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
