"""Measures the latency of streams and finds the operator that causes it."""
