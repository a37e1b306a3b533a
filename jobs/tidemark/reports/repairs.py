"""Records what people decided about repairs of streams, and lets one repair run at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.control.folder import Control
from tidemark.model.project.layout import Layout
from tidemark.model.tables.catalog import DECISIONS
from tidemark.reports.batch_job import report_lock
from tidemark.semantics.incidents import DecisionSubject
from tidemark.semantics.repairs import RepairOutcome
from tidemark.storage.locks import locked, own_folder
from tidemark.storage.object_path import ObjectPath

LOCKED_WITHIN_S = 60.0
_PLAN = re.compile(r"^plan ([0-9a-f]{12}): ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class RepairDecision:
    """What a person decided about one repair command.

    Attributes:
        topology: the name of the topology.
        sub_topology: the sub-topology to repair, None for all of the topology.
        command: the name of the command.
        effect: what the dry run of the command showed.
        outcome: what became of the command.
        by: the person who decided, None if nobody answered.
        note: the reason that the person gave, empty without one.
        result: the output of the command, or its error; None if it was not run.
        asked_in: DAG, run and try of the task that asked the person; None if the command was run by hand.
    """

    topology: str
    sub_topology: str | None
    command: str
    effect: str
    outcome: RepairOutcome
    by: str | None
    note: str = ""
    result: str | None = None
    asked_in: str | None = None


@contextmanager
def repair_lock(layout: Layout, topology: str) -> Iterator[None]:
    """Holds the lock of repairs of *topology* during the context.

    Raises:
        LockHeld: another repair has held the lock for LOCKED_WITHIN_S; in an object store it is AlreadyRunning.
    """
    home = layout.repair_control(topology)
    # Only in an object store is this a lease; on a disk the file below is the lock.
    with Control(home).held_alone(patience_s=LOCKED_WITHIN_S):
        if isinstance(home, ObjectPath):
            yield
            return
        own_folder(home)
        with locked(home / "repair.lock", within_s=LOCKED_WITHIN_S):
            yield


def record_repair(layout: Layout, made: RepairDecision, *, at_ms: int) -> None:
    """Adds a row to `decisions` for what was decided (*made*) at *at_ms*, epoch ms."""
    from tidemark.storage.delta.report_tables import add_rows  # tasks of Airflow need it, and parsers of DAGs do not

    kind = DecisionSubject.TOPOLOGY if made.sub_topology is None else DecisionSubject.SUB_TOPOLOGY
    row = {
        "topology": made.topology,
        "decision": made.command,
        "subject_kind": kind.value,
        "subject": made.sub_topology or made.topology,
        "decided_at": at_ms,
        "decided_by": made.by,
        "note": made.note or None,
        "effect": made.effect,
        "outcome": made.outcome.value,
        "result": made.result,
        "asked_in": made.asked_in,
    }
    with report_lock(layout, made.topology):
        add_rows([row], DECISIONS, layout.report_table(made.topology, DECISIONS.name))


def with_plan(effect: str, plan: str) -> str:
    """Returns the output of a dry run: its *effect*, and how to carry out exactly that *plan*."""
    return f"{effect}\nplan {plan}: nothing was changed; to do this and nothing else, add --plan {plan}"


def split_plan(output: str) -> tuple[str, str | None]:
    """Returns the effect and the plan in the *output* of a dry run; the plan is None if there was nothing to do.

    >>> split_plan(with_plan("2 records would be sent again", "0123456789ab"))
    ('2 records would be sent again', '0123456789ab')
    """
    plans = [*_PLAN.finditer(output)]
    # The effect may quote text of others that looks like a plan, so the last one counts.
    return (output[: plans[-1].start()].rstrip("\n"), plans[-1][1]) if plans else (output.rstrip("\n"), None)
