"""What each kind of operator does with a batch: a file each, listed in `registry.py`."""
