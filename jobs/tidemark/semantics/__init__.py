"""Rules that decide every number; standard library only.

Each module names the source of its rules.
"""
