"""How many examples a property gets: the same 50 each time, and `pytest --hypothesis-profile=proof` gives it 2,000.

And JVMs that compile once: those of tests live for seconds, and what the second compiler saves comes later. Those of
Spark have its classes from an archive where `make test` has made one, which saves 6 s of CPU time a start.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

CLASSES = Path(__file__).parents[1] / ".jars" / "classes.jsa"
SHARED = f" -XX:SharedArchiveFile={CLASSES} -Xlog:disable -Xlog:all=error:stderr" if CLASSES.exists() else ""
os.environ.setdefault("_JAVA_OPTIONS", f"-XX:TieredStopAtLevel=1{SHARED}")  # this one goes before the command line
settings.register_profile(
    "unit", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("proof", settings.get_profile("unit"), max_examples=2000, derandomize=False)
settings.load_profile("unit")
