"""Divides the ages of windows into parts, and finds culprits."""
