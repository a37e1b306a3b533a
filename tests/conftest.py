"""Sets Hypothesis examples to 25, or 2,000 with `pytest --hypothesis-profile=proof`.

The 25 are the same each time. JVMs compile once: those of tests live for seconds, and what the second compiler saves
comes later. Python seldom looks for garbage, and never among the modules: that took a seventh of the CPU time.
"""

import gc
import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # this one goes before the command line
gc.set_threshold(100_000, 50, 50)
settings.register_profile(
    "unit", max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("proof", settings.get_profile("unit"), max_examples=2000, derandomize=False)
settings.load_profile("unit")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
