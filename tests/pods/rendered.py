"""Prints the command by which Airflow starts a stream.

The arguments are the topology's file, the stream and the id of the launch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(file: str, stream: str, launch_id: str) -> None:
    """Prints the command as a list in JSON."""
    # Airflow reads its settings when it is imported, and the process of tests has others.
    from tidemark_airflow.operators.pods import launch_command
    from tidemark_airflow.operators.stream import StreamOperator

    operator = StreamOperator(
        task_id=stream, topology_file=Path(file), sub_topology=stream, warehouse="/data/warehouse", bootstrap="k:9092"
    )
    sys.stdout.write(json.dumps(launch_command(operator._command(), launch_id, stream)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
