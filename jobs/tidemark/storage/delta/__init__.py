"""Writes and reads Delta tables without Spark."""
