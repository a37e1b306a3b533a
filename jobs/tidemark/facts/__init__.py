"""Reads the facts that streams, reports and checks have written; no other room opens their tables."""
