"""Commands that show and explain results."""
