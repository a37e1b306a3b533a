"""Collects the facts that an explanation is made of."""
