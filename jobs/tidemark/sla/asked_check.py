"""Describes a check of SLAs for another process; cheap to import."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.clock import wall_clock_ms
from tidemark.control.shared_work import alone
from tidemark.errors import TidemarkError
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import report_lock
from tidemark.reports.batch_job import topology as topology_named
from tidemark.sla.unjudged import waiting_topologies
from tidemark.storage.locks import ForeignOwner, LockHeld, own_folder

log = logging.getLogger(__name__)


class SuitesFailed(TidemarkError):
    """Raised when the stored checks of a topology could not be judged."""


@dataclass(frozen=True, kw_only=True)
class AskedCheck:
    """A check of SLAs that another process is asked to make.

    Attributes:
        layout: paths of the warehouse.
        topology: the topology that promises the SLAs.
        specs: the SLAs to judge.
        at_ms: the instant of the check, epoch ms. None to judge by great-expectations what the checker has stored, or
            if there is no checker, to check the present.
        run_id: the run to which the results belong.
        unusable: names of SLAs that cannot be judged, which are left out.
        project: the folder of the topologies that may read the topics of this one.
    """

    layout: Layout
    topology: Topology
    specs: tuple[SlaSpec, ...]
    at_ms: int | None
    run_id: str
    unusable: frozenset[str]
    project: Path

    def __call__(self) -> None:
        """Makes the check."""
        # Collection takes a fifth of the time of importing great-expectations, which keeps what it allocates.
        gc.disable()
        from tidemark.sla.check import judge_stored, run
        from tidemark.sla.incidents.changes import gap_ms
        from tidemark.sla.incidents.tables import checked_before
        from tidemark.sla.measures.progress import wait_for_facts

        # Imported modules stay, so no later collection needs to look at them.
        gc.freeze()
        gc.enable()
        layout, topology, now_ms = self.layout, self.topology, wall_clock_ms()
        with report_lock(layout, topology.name):
            if self.at_ms is None:
                checked_ms = checked_before(layout, topology.name, now_ms, self.run_id)
                if checked_ms is not None and now_ms - checked_ms <= gap_ms(topology):
                    judge_stored(layout, topology, at_ms=now_ms, run_id=self.run_id)
                    return
            at_ms = now_ms if self.at_ms is None else self.at_ms
            late = wait_for_facts(layout, topology, at_ms=at_ms, clock=wall_clock_ms, sleep_s=time.sleep)
            run(
                layout,
                topology,
                self.specs,
                at_ms=at_ms,
                run_id=self.run_id,
                made_ms=wall_clock_ms(),
                unusable=self.unusable,
                behind=late,
                project=self.project,
            )


def judge_what_waits(layout: Layout, *, run_id: str) -> None:
    """Judges by great-expectations what checks of any topology have stored, until none waits.

    It stops where another process of this host judges. Whoever finds that one at work leaves a check to it: so it looks
    again after it has let go. A topology whose files cannot be used is left to the tasks of its own DAGs.

    Raises:
        SuitesFailed: a topology could not be judged; the others were.
    """
    folder, failed = checks_of(layout.warehouse), dict[str, str]()
    while waiting := [topology for topology in _usable(layout) if topology.name not in failed]:
        try:
            own_folder(folder)
            with alone(folder):
                for topology in waiting:
                    try:
                        _judge(layout, topology, run_id)
                    except Exception as error:
                        log.exception("the checks of %s cannot be judged", topology.name)
                        failed[topology.name] = str(error)
        except (LockHeld, ForeignOwner, OSError):
            break
    if failed:
        raise SuitesFailed("; ".join(f"{name}: {error}" for name, error in failed.items()))


def _usable(layout: Layout) -> Iterator[Topology]:
    """Yields the topologies with checks that wait, without those whose files cannot be used."""
    for name in waiting_topologies(layout):
        try:
            yield topology_named(name, layout)
        except TidemarkError as error:
            log.warning("the checks of %s are not judged: %s", name, error)


def _judge(layout: Layout, topology: Topology, run_id: str) -> None:
    from tidemark.sla.check import judge_stored  # imports great-expectations

    with report_lock(layout, topology.name):
        judge_stored(layout, topology, at_ms=wall_clock_ms(), run_id=run_id)


def checks_of(warehouse: Path) -> Path:
    """Returns the folder where processes that check SLAs find one another."""
    # Only processes of this user on this host share work, and only those for one warehouse.
    name = hashlib.sha256(str(warehouse.absolute()).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"tidemark-{os.geteuid()}-checks-{name}"
