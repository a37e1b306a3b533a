"""Runs the operators of a stream in shards, on Spark."""
