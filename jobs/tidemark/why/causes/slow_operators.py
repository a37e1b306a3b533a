"""Finds operators whose work makes batches exceed the trigger interval."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.facts.outcome_facts import LATELY
from tidemark.model.settings.lengths import for_people
from tidemark.why.causes.inputs import Inputs
from tidemark.why.causes.registry import rule
from tidemark.why.evidence.findings import Cause, Trait, WhyFinding
from tidemark.why.evidence.snapshot import Scene

SLOW_OPERATOR = Cause("slow_operator", Trait.USUAL)
"""An operator uses most of the trigger interval, and batches exceed it."""


@rule
def slow_operators(scene: Scene, name: str) -> Iterator[WhyFinding]:
    """Yields operators that slow down the driver of *name* or upstream ones."""
    if scene.topology.jobs:
        return  # `slow_phase` says it of queries of jobs, by Spark's own phases
    trigger_ms = scene.topology.trigger_ms
    inputs = Inputs(scene)
    quiet_ms = min(inputs.quiet_ms(source) for source in scene.sources(name).values())
    for slow, work_ms, batch_ms in scene.of(name).busy:
        if quiet_ms > batch_ms:
            continue  # another slow batch would have ended since
        is_source = scene.operator(slow).is_source
        works = "reading and parsing take" if is_source else f"{slow} works for"
        observation = (
            f"{works} {for_people(work_ms)} in the median of the last {LATELY} batches that closed windows, "
            f"more than half of the trigger interval ({for_people(trigger_ms)}); "
            f"the median of the whole batches is {for_people(batch_ms)}"
        )
        command = f"tidemark whatif {scene.topology.name} --operator {slow} --scale 0.5"
        less = "choose a longer trigger" if is_source else f"make it do less, or try: `{command}`"
        remedy = f"give its driver more cores, or {less}"
        yield scene.finding(SLOW_OPERATOR, slow, observation, remedy)
    for operator in scene.sub(name).operators:
        for sender in operator.upstreams if operator.is_source else ():
            yield from slow_operators(scene, sender)
