"""Asks people about repairs of each topology's streams."""

from tidemark_airflow import topology_dags

topology_dags("decisions")
