"""Watches Delta tables that any program writes, by their logs alone: how old they are, and who writes them."""
