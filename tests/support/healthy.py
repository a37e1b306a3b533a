"""The stages of the table of planted faults, as they are until their faults begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.fault_table import Stage
from support.job_world import JobWorld
from support.world import World
from tidemark.model.slas.sla_spec import SlaSpec, parse

AnyWorld = World | JobWorld


class Healthy:
    """The stages as they are until their faults begin, in the folder *home*."""

    def __init__(self, home: Path) -> None:
        self._home, self._stages = home, dict[Stage, AnyWorld]()

    def copy(self, stage: Stage, home: Path) -> AnyWorld:
        """Returns a world that goes on from the healthy one."""
        if stage not in self._stages:
            home_of_stage = self._home / str(len(self._stages))
            self._stages[stage] = stage.make(
                stage.toml, home_of_stage, traffic=stage.traffic, costs=stage.costs, starts_s=stage.starts_s
            )
            self._stages[stage].run(stage.since_s)
        return self._stages[stage].copy(home)


def specs_of(stage: Stage, world: AnyWorld, *promises: str) -> Sequence[SlaSpec]:
    slas = {name: {**stage.promises[name], "owner": "o"} for name in promises}
    return parse({world.topology.name: slas}, world.topology, file="slas.toml")
