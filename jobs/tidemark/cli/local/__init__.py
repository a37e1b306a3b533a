"""Commands that run streams on this machine."""
