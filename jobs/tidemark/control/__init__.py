"""Supervises drivers through their control folders."""
