"""Models that tests compare the product with.

They calculate one record at a time, or by the rules of other systems.
"""
