"""Defines the colours of charts and pages.

They are those of Okabe and Ito, which are distinct for every kind of colour vision.
"""

INK, PALE, GRID, SILENT = "#1b1f24", "#57606a", "#e4e7eb", "#9aa4ae"
BLUE, SKY, GREEN, ORANGE, RED, PINK, YELLOW = (
    "#0072b2",
    "#56b4e9",
    "#009e73",
    "#e69f00",
    "#d55e00",
    "#cc79a7",
    "#b59b00",
)
