"""Former place of the trigger that waiting tasks may name."""

from tidemark.airflow.tasks.stream import StreamTrigger

__all__ = ["StreamTrigger"]
