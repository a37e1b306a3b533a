"""Measures and judges SLAs and contracts, and follows incidents.

It also finds culprits, formats alerts and renders the page of SLAs.
"""
