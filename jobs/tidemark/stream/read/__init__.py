"""Reads the sources of a stream.

It makes what Spark plans, and parses the records.
"""
