"""Reads the tables that streams, reports and checks have written; no other room opens them."""
