"""The measures of SLAs, each in a file of this folder; importing the folder registers them all."""

from __future__ import annotations

from tidemark.extensions import import_all
from tidemark.model.measures.registry import registered

import_all(__name__, __path__, group="tidemark.measures")

MEASURES = registered()
"""All measures by name."""
