"""Rolls up latencies and finds critical paths of each topology."""

from tidemark.airflow import topology_dags

topology_dags("reports")
