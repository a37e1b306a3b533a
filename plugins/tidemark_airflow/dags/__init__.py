"""The DAGs of topologies."""
