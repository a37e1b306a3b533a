"""Checks the SLAs of each topology and alerts people of incidents."""

from tidemark_airflow import topology_dags

topology_dags("sla_check")
