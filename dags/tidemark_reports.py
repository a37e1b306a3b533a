"""Rolls up latencies, finds critical paths and keeps tables small, by an hourly and a daily DAG per topology."""

from tidemark_airflow import topology_dags

topology_dags("reports")
