"""Records decisions of people about repairs of streams."""

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
    """A decision about one command.

    Attributes:
        topology: the topology.
        sub_topology: its sub-topology; None: all of them.
        command: the command's name.
        effect: what its dry run showed.
        outcome: what became of it.
        by: the person; None: there was no answer.
        note: the reason that the person gave; empty: none.
        result: output of the command, or its error.
        asked_in: DAG, run and try of the task that asked; None: the command was run by hand.
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

    Raises LockHeld, or AlreadyRunning in an object store, if another repair holds it for LOCKED_WITHIN_S.
    """
    home = layout.repair_control(topology)
    # On a disk this lease is none.
    with Control(home).held_alone(patience_s=LOCKED_WITHIN_S):
        if isinstance(home, ObjectPath):
            yield
            return
        own_folder(home)
        with locked(home / "repair.lock", within_s=LOCKED_WITHIN_S):
            yield


def record_repair(layout: Layout, made: RepairDecision, *, at_ms: int) -> None:
    """Adds a row for the decision *made* at *at_ms*, epoch ms."""
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
    """Returns the output of a dry run with *effect* and *plan*."""
    return f"{effect}\nplan {plan}: nothing was changed; to do this and nothing else, add --plan {plan}"


def split_plan(output: str) -> tuple[str, str | None]:
    """Returns effect and plan of a dry run's *output*.

    The plan is None if there was nothing to do.

    >>> split_plan(with_plan("2 records would be sent again", "0123456789ab"))
    ('2 records would be sent again', '0123456789ab')
    """
    plans = [*_PLAN.finditer(output)]
    # Text of others, such as names, comes before.
    return (output[: plans[-1].start()].rstrip("\n"), plans[-1][1]) if plans else (output.rstrip("\n"), None)
