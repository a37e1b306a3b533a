"""Measures the process of a driver, and wakes its batches."""
