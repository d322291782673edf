"""Figures of the page, one file each.

A module here draws SVG text from `Results`, which are read once, and states what to conclude from the picture.
No file is read and no score is computed here.
"""

from ._base import Figure, FigureTable, Mistake, OutlinedImage, Ranking, Results, SiteMistakes, SiteOutlines

__all__ = ["Figure", "FigureTable", "Mistake", "OutlinedImage", "Ranking", "Results", "SiteMistakes", "SiteOutlines"]
