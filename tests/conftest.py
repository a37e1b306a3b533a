"""Sets Hypothesis examples to 50, or 2,000 with `pytest --hypothesis-profile=proof`.

The 50 are the same each time.

And JVMs that compile once: those of tests live for seconds, and what the second compiler saves comes later.
"""

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # this one goes before the command line
settings.register_profile(
    "unit", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("proof", settings.get_profile("unit"), max_examples=2000, derandomize=False)
settings.load_profile("unit")
