"""Checks the SLAs and contracts of a topology at an instant.

Writes sla_results, a row per SLA, expectation_results, a row per expectation and period with one verdict, and
incidents, a row for each that opens, gets worse or ends. Also writes html/slas.html, a page of the newest results. A
broken SLA becomes a row and does not fail this job. An invalid SLA fails it after the verdicts of all valid ones were
written; its incident stays open. The job waits for a stream that has not passed the instant; after that wait the
stream's verdict is unknown. Checking again with the same --run-id replaces what that run wrote. A check for a past
instant leaves out the rows of batches that finished later. A check for an instant before one that was checked already
opens and ends no incident, and adds to no period of an expectation.

Without --at it judges by great-expectations what the checker has stored since the last time, and the contracts of
tables. If the checker has stored nothing for two `check_every`, it makes a check for the present instead.

If several topologies of a warehouse are checked at once on a host, one process makes all checks, because its imports
cost more than a check. Without --at it also judges what waits of other topologies.
"""

from __future__ import annotations

import os

import tidemark.allocator  # noqa: F401 - first, before others import Arrow
from tidemark.clock import wall_clock_ms
from tidemark.control.shared_work import share
from tidemark.model.project.files import Project
from tidemark.model.settings.intervals import iso
from tidemark.model.slas.sla_spec import CLOCKS_APART_MS, load_usable
from tidemark.reports.batch_job import add_instant, parse, parser
from tidemark.sla.asked_check import AskedCheck, checks_of, judge_what_waits

SUITES_YIELD = 10
"""Niceness of suites: what tells people of the same check has the processor first."""


def main() -> None:
    """Runs the check that the command line asks for."""
    arguments = parser(__doc__)
    at = "instant of the check; without it suites judge the stored checks"
    add_instant(arguments, "--at", "at_ms", at, required=False)
    arguments.add_argument("--run-id", required=True, help="id of the run that makes the check")
    options = parse(arguments)
    now_ms = wall_clock_ms()
    if options.at_ms is not None and options.at_ms > now_ms + CLOCKS_APART_MS:
        arguments.error(
            f"argument --at: {iso(options.at_ms)} is in the future, it is {iso(now_ms)} now; use an earlier instant"
        )
    if options.at_ms is None:
        os.nice(SUITES_YIELD)
    project = Project.here()
    slas = load_usable(project.slas, options.topology)
    if not slas.specs:
        slas.refuse()
    check = AskedCheck(
        layout=options.warehouse,
        topology=options.topology,
        specs=slas.specs,
        at_ms=options.at_ms,
        run_id=options.run_id,
        unusable=slas.unusable,
        project=project.topologies,
    )
    try:
        share(check, checks_of(options.warehouse.warehouse))
    finally:
        if options.at_ms is None:
            judge_what_waits(options.warehouse, run_id=options.run_id)
    slas.refuse()


if __name__ == "__main__":
    main()
