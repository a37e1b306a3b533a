"""Reads the sources of a stream: what Spark plans, and the records that are parsed from it."""
