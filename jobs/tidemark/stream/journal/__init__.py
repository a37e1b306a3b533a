"""Keeps planned and decided batches."""
