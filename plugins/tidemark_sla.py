"""Former place of notifier and callback, which channels and runs may name."""

from tidemark.airflow.tasks.sla import LogNotifier, tell_of_missed_checks

__all__ = ["LogNotifier", "tell_of_missed_checks"]
