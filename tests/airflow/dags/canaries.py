"""Batch jobs and channels with the connections in which `test_canaries.py` plants canaries."""

import os
from pathlib import Path

from airflow.sdk import DAG, Asset, Param, chain

from tidemark.model.slas.channel_spec import parse
from tidemark.model.topology import load
from tidemark_airflow.operators.sla import DeliverChanges, channels
from tidemark_airflow.operators.spark import BatchJob

NUMBERS = Path(os.environ["TIDEMARK_TEST_TOPOLOGIES"]) / "numbers.toml"
WAREHOUSE = "{{ params.warehouse }}"
HOUR = "macros.timedelta(hours=1)"
INTERVAL = (
    *("--from", f"{{{{ (dag_run.run_after - {HOUR}).isoformat() }}}}"),
    *("--to", f"{{{{ (dag_run.run_after + {HOUR}).isoformat() }}}}"),
)
JOBS = {
    "rollup": (str(NUMBERS), *INTERVAL),
    "critical_path": (str(NUMBERS), *INTERVAL, "--html", f"{WAREHOUSE}/reports/numbers/html"),
    "maintain": (str(NUMBERS),),
    "check_sla": ("flights", "--at", "{{ dag_run.run_after.isoformat() }}", "--run-id", "{{ run_id }}"),
}
CHANNELS = {
    "desk": {"kind": "mail", "to": ["desk@example.org"], "from": "tidemark@example.org"},
    "room": {"kind": "slack", "connection": "slack_stored"},
    "gone": {"kind": "slack", "connection": "slack_gone"},
}

with DAG("canaries", schedule=None, params={"warehouse": Param("", type="string")}):
    jobs = [
        BatchJob(
            task_id=job,
            job=job,
            spark=load(NUMBERS).spark,
            conf={"spark.ui.enabled": "false"},
            inlets=[Asset("file:///lake/numbers")],
            application_args=["--warehouse", WAREHOUSE, "--topology", *arguments],
        )
        for job, arguments in JOBS.items()
    ]
    told = [*channels("flights"), *parse(CHANNELS, file="channels.toml")]
    chain(*jobs, [DeliverChanges(channel=channel, topology="flights", warehouse=WAREHOUSE) for channel in told])
