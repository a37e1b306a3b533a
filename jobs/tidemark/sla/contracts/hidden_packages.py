"""Hides packages from an import that would use them if they are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Makes *packages* look as if they were not installed, unless this process has imported them already."""
    absent = {name: None for name in packages if name not in sys.modules}
    sys.modules.update(absent)  # type: ignore[arg-type]  # None makes an import raise ModuleNotFoundError
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
