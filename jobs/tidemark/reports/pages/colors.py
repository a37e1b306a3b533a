"""Colours of parts that are told apart: those of Okabe and Ito, distinct for every kind of colour vision.

The style of charts in `parts.html.j2` has the same values.
"""

SILENT = "#9aa4ae"
BLUE, SKY, GREEN, ORANGE, RED, PINK, YELLOW = (
    "#0072b2",
    "#56b4e9",
    "#009e73",
    "#e69f00",
    "#d55e00",
    "#cc79a7",
    "#b59b00",
)
