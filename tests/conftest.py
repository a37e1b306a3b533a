"""How many examples a property gets: 100 in `make unit`; `pytest --hypothesis-profile=proof` gives each 2,000."""

from hypothesis import HealthCheck, settings

settings.register_profile("unit", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("proof", settings.get_profile("unit"), max_examples=2000)
settings.load_profile("unit")
