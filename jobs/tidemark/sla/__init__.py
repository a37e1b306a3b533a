"""Measures and judges SLAs and contracts; follows, explains and shows incidents."""
