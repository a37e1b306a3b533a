"""The metrics of topologies, each group in a file of this folder."""
