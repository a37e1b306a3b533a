"""The DAG of each topology that asks people about repairs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG, Param

from tidemark_airflow.dags.settings import BOOTSTRAP, WAREHOUSE, dag, topologies
from tidemark_airflow.operators.decisions import ANSWERED_WITHIN, CAN_ASK, TASK, DecisionOperator

DOC = """
Asks a person about a command that repairs streams of the topology `{name}`, and runs it if that person approves. Each
run is one question, and holds no slot of a worker or a pool while it waits. A stream that fails with such a command as
its remedy asks by itself.

* **command** is one of `accept-loss`, `requeue`, `reset-time`, `doctor --apply remove-torn`, `reshard` and `begin`, as
  `tidemark why` or an error prints it.
* **answer_within**: without an answer by then nothing is done.

Answer in *Browse → Required Actions*, or on the page of the task. Each answer is a row of `decisions`.
"""
MOST_QUESTIONS = 16
"""Questions that may wait at once."""


def make() -> Iterator[DAG]:
    """Makes the DAG of each topology; none in Airflow 3.2."""
    for topology in topologies().values() if CAN_ASK else ():
        params = {
            "command": Param("", type="string", description="such as `tidemark reset-time …`, of this topology"),
            "answer_within": Param(ANSWERED_WITHIN, type="string", description='a length of time, such as "1 h"'),
            "why": Param("", type="string", description="the reason for the question"),
            "stream": Param("", type="string", description="set by a stream that waits for the answer"),
        }
        # A question that a stream asks must not wait until a person has unpaused the DAG.
        more = {"params": params, "max_active_runs": MOST_QUESTIONS, "is_paused_upon_creation": False}
        with dag(topology, "decisions", doc=DOC, schedule=None, **more) as asking:
            DecisionOperator(
                task_id=TASK,
                # An answer that Airflow lost is asked for again at once; storage may be away for minutes.
                retries=6,
                retry_delay=timedelta(seconds=2),
                retry_exponential_backoff=2,
                topology=topology,
                command="{{ params.command }}",
                warehouse=WAREHOUSE,
                bootstrap=BOOTSTRAP,
                answer_within="{{ params.answer_within }}",
                why="{{ params.why }}",
                stream="{{ params.stream }}",
                deciders="{{ var.value.get('tidemark_deciders', '') }}",
            )
        yield asking
