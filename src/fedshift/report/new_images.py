"""Predictions for new images in numbers, whatever is predicted."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ..analysis.values import DASH
from ..jobs.apply import Applied

EDGE = 96
"""Pixels along a side of an image on the page."""
MOST = 50
"""Rows of a table on the page; predictions.csv has all."""


class NewImages:
    """The predictions of a run for new images.

    Attributes
    ----------
    table : a row for each image, as `Applied.table` has it
    sites : names in their order; empty where they are not known
    twice : how many rows name an image that an earlier row names
    labelled : how many images have a label
    unit : what intervals resample
    changed : what depends on the other images of a site where an inference works in batches
    edge : the most pixels along a side of an example
    """

    labelled = 0
    unit = "images"
    changed = ""
    edge = EDGE

    def __init__(self, applied: Applied) -> None:
        self.table = applied.table
        self.twice = int(self.table["path"].duplicated().sum())
        self.sites = list(self.table["site"].unique()) if "site" in self.table else []

    def at(self, site: str | None) -> pd.DataFrame:
        """Return the rows of a site, or all rows."""
        return self.table if site is None else self.table[self.table["site"] == site]

    def first(self) -> str:
        """Return the end of the caption of a table of sites that does not have all of them."""
        return f", the first {MOST} of {len(self.sites)}" if len(self.sites) > MOST else ""

    def taken(self) -> str:
        """Return how the images were taken together."""
        return f"of {len(self.sites)} sites" if self.sites else "taken as one site"

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return what the page shows of these predictions; `trained_at` are the sites that took part in training.

        lead (text), tiles, tables, metrics (a table or None), figure, care (sentences), examples_note (text), and
        sorts: heading and description of each sort of examples. Where images have labels, also one_class: all of these
        are of one class.
        """
        raise NotImplementedError


def share(part: float, whole: float) -> str:
    """Return a part in percent; a dash where there is nothing to divide."""
    return f"{100 * part / whole:.1f}" if whole else DASH
