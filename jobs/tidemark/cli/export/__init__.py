"""Commands that give other programs what Tidemark knows."""
