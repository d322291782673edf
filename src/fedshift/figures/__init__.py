"""Figures of a study's page, one plug-in in each file.

A figure gets the study's results as one `Results` object, and returns an SVG picture and a caption that says what to
conclude from it. A figure reads no file and computes no score.
"""

from ._base import Figure, FigureTable, Mistake, OutlinedImage, Ranking, Results, SiteMistakes, SiteOutlines

__all__ = ["Figure", "FigureTable", "Mistake", "OutlinedImage", "Ranking", "Results", "SiteMistakes", "SiteOutlines"]
