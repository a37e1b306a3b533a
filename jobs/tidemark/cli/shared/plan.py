"""Shows what a command would change, and changes nothing else.

Between the look of a person and the change another person, or the stream itself, may have done something.
"""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from tidemark.clock import Clock, wall_clock_ms
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.layout import Layout
from tidemark.reports.repairs import RepairDecision, record_repair, repair_lock, with_plan
from tidemark.semantics.repairs import RepairOutcome


class PlanChanged(TidemarkError):
    """Raised when a command would not do what its dry run showed."""

    exit_status = 4


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """A change of streams, before it is made.

    Attributes:
        topology: the topology.
        sub_topology: its sub-topology; None: all of them.
        effect: what the change does, for people.
        state: what the effect depends on: arguments, and what the stream has done. Equal states have equal effects.
        apply: makes the change, and returns the result as text.
        is_needed: False if nothing would change.
    """

    topology: str
    sub_topology: str | None
    effect: str
    state: object
    apply: Callable[[], str]
    is_needed: bool = True

    @property
    def id(self) -> str:
        """A digest of the state, in 12 hexadecimal digits."""
        return sha256(repr((self.topology, self.sub_topology, self.state)).encode()).hexdigest()[:12]


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Adds the options for a dry run and its plan."""
    parser.add_argument("--dry-run", action="store_true", help="show what would be changed, and change nothing")
    parser.add_argument(
        "--plan", metavar="ID", help="change only what the dry run with this id showed; if that has changed, refuse"
    )
    # Airflow's tasks name themselves.
    parser.add_argument("--asked-in", help=argparse.SUPPRESS)


def add_author(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the person who decides, and the reason."""
    parser.add_argument("--by", metavar="NAME", help="person who decides (default: the user of this machine)")
    parser.add_argument("--note", metavar="TEXT", help="reason for the decision")


def refuse_anonymous(options: argparse.Namespace) -> None:
    """Raises InvalidArgument for a change without `--by` or `--reason`."""
    missing = [name for name in ("by", "reason") if not getattr(options, name)]
    if missing and not options.dry_run:
        msg = f"--{missing[0]}: is missing; name the person who decides (--by) and the reason (--reason)"
        raise InvalidArgument(msg)


def carry_out(
    planned: Callable[[], RepairPlan],
    options: argparse.Namespace,
    layout: Layout,
    topology: str,
    *,
    note: str | None,
    clock: Clock = wall_clock_ms,
) -> str:
    """Shows or applies a plan, as *options* ask; returns text.

    A change is recorded in `decisions` after it was made. No other repair comes between its plan and its row.

    Args:
        planned: looks at the streams, and returns the change.
        options: the command line.
        layout: the warehouse.
        topology: the name of the topology.
        note: the reason that the person gave.
        clock: epoch ms UTC.

    Raises:
        PlanChanged: the change is not the one that the dry run of `--plan` showed.
        LockHeld: another repair of the topology lasts too long; AlreadyRunning in an object store.
    """
    if options.dry_run:
        plan = planned()
        return with_plan(plan.effect, plan.id) if plan.is_needed else plan.effect
    with repair_lock(layout, topology):
        return _applied(planned(), options, layout, note, clock)


def _applied(plan: RepairPlan, options: argparse.Namespace, layout: Layout, note: str | None, clock: Clock) -> str:
    if options.plan not in {None, plan.id}:
        msg = f"this is not what plan {options.plan} showed, and nothing was changed; now it is plan {plan.id}:\n"
        raise PlanChanged(msg + plan.effect)
    result = plan.apply()
    if plan.is_needed:
        made = RepairDecision(
            topology=plan.topology,
            sub_topology=plan.sub_topology,
            command=options.command,
            effect=plan.effect,
            outcome=RepairOutcome.APPLIED,
            by=options.by or getpass.getuser(),
            note=note or "",
            result=result,
            asked_in=options.asked_in,
        )
        record_repair(layout, made, at_ms=clock())
    return result
