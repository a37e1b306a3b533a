"""A driver without Spark that beats until drained, like `jobs/stream.py`.

It takes the lease, too. A file `behaviour` in the control folder changes its behaviour: `fail`, `fail later`, `hang`,
`stuck`, `rotate`, `ignore drain`. With `lose COMMAND` it fails until a loss is accepted, and names the command.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tidemark.control.driver_folder import DriverFolder
from tidemark.control.folder import AlreadyRunning, Control, Heartbeat, StreamState, digest
from tidemark.model.project.layout import Layout
from tidemark.storage.location import location


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    for option in ("--warehouse", "--topology", "--sub-topology", "--bootstrap", "--launch-id"):
        parser.add_argument(option, required=True)
    parser.add_argument("--slow", action="append", default=[])
    parser.add_argument("--launched-by")
    parser.add_argument("--rotate-after")
    parser.add_argument("--secrets")
    parser.add_argument("--time", default="event")
    parser.add_argument("--take-over", action="store_true")
    parser.add_argument("--silent-after", type=float, default=60)
    args = parser.parse_args(arguments)
    name = Path(args.topology).stem + ("_on_processing_time" if args.time == "processing" else "")
    control = Control(Layout(location(args.warehouse)).control(name, args.sub_topology))
    running = digest(Path(args.topology))
    try:
        epoch = control.acquire(
            take_over_at_ms=time.time_ns() // 1_000_000 if args.take_over else None,
            silent_after_ms=round(args.silent_after * 1_000),
        )
    except AlreadyRunning:
        return 3
    (control.home / "seen.json").write_text(json.dumps({"env": dict(os.environ), "slow": args.slow}))
    asked = control.home / "behaviour"
    behaviour = asked.read_text() if asked.exists() else ""
    started_ms = time.time_ns() // 1_000_000
    batches = 0

    def beat(state: StreamState, reason: str | None = None) -> None:
        now_ms = time.time_ns() // 1_000_000
        control.beat(
            Heartbeat(
                state=state, epoch=epoch, launch_id=args.launch_id, at_ms=now_ms, pid=os.getpid(), reason=reason,
                doing=f"batch {batches}", since_ms=started_ms if behaviour == "stuck" else now_ms, batches=batches,
                digest=running, host=platform.node(),
            )
        )  # fmt: skip

    if behaviour in ("fail", "fail later"):
        batches = int(behaviour == "fail later")
        sys.stdout.write("the topic is gone\n")
        beat(StreamState.FAILED, f"no topic flight_events, asked {epoch} times")
        control.release()
        return 1
    if behaviour.startswith("lose ") and not control.accepted_loss():
        command = behaviour.removeprefix("lose ")
        beat(StreamState.FAILED, f"DataLost: offsets were lost unread: tidemark {command} --by NAME --reason TEXT")
        control.release()
        return 1
    beat(StreamState.RUNNING)
    if behaviour == "rotate" and args.rotate_after == "100" and epoch == 1:
        beat(StreamState.ROTATED)
        control.release()
        return 0
    if behaviour == "hang":
        time.sleep(60)
    while behaviour in ("ignore drain", "stuck") or not control.drain_requested():
        beat(StreamState.RUNNING)
        time.sleep(0.05)
    beat(StreamState.DRAINED)
    control.release()
    return 0


if __name__ == "__main__":
    is_shared = sys.argv[1] == "--driver"
    sys.exit(DriverFolder(Path(sys.argv[2])).drive(main) if is_shared else main(sys.argv[1:]))
