"""Estimates whether a machine can keep up with the schedules of topologies."""

from __future__ import annotations

import math
from collections.abc import Collection

from tidemark.model.settings.lengths import length_in_toml
from tidemark.model.topology import Topology

CHECK_CPU_S = 1.5
"""CPU time of one check of SLAs by the checker (docs/performance.md)."""
REPORTS_CPU_S = 10.0
"""CPU time of the reports and suites of one hour."""
SHARE = 0.5
"""Share of a machine for schedules; the rest is for streams."""
HOUR_S = 3_600.0


def cores_taken(topologies: Collection[Topology]) -> float:
    """Returns how many cores the checks and reports of *topologies* take on average."""
    checks = sum(CHECK_CPU_S * 1_000 / topology.check_every_ms for topology in topologies)
    return checks + len(topologies) * REPORTS_CPU_S / HOUR_S


def too_many(topologies: Collection[Topology], cores: int) -> str | None:
    """Returns a warning with its remedy if checks and reports of *topologies* need too many of *cores*, or None."""
    cores_needed, most = cores_taken(topologies), cores * SHARE
    if cores_needed <= most:
        return None
    spare_cores = most - len(topologies) * REPORTS_CPU_S / HOUR_S
    observation = f"checks and reports of {len(topologies):,} topologies take about {cores_needed:.1f} of {cores} cores"
    if spare_cores <= 0:
        return f"{observation}; schedule some of them on another machine"
    often_ms = math.ceil(len(topologies) * CHECK_CPU_S * 1_000 / spare_cores / 60_000) * 60_000
    oftener = ", ".join(sorted(t.name for t in topologies if t.check_every_ms < often_ms))
    return f'{observation}; set check_every of {oftener} to "{length_in_toml(often_ms)}" or longer'
