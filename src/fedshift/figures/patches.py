"""Random example images of each site."""

from __future__ import annotations

from pydantic import Field

from ._base import Figure, Results
from ._images import Tile, each_row, grid, private
from ._series import ROLES


class Patches(Figure):
    """Random images of each site with their classes, which show the feature shift."""

    title = "Example patches"
    section = "examples"
    shows_images = True
    each: int = Field(6, ge=1, description="largest number of images of a site")

    def caption(self, results: Results) -> str:
        return (
            "Drawn at random from all images of each site, of any class and split, and shown class by class. The "
            f"differences between the rows are the feature shift of this study.{private(results.synthetic)}"
        )

    def draw(self, results: Results) -> str:
        shown = results.images(self.each)
        sites = [site for site in results.sites if site in shown]
        most = each_row(self.each, len(sites))
        rows = []
        for site in sites:
            roles = [role for role in ROLES if site in getattr(results, role)]
            tiles = [Tile(image, (results.classes[label],)) for image, label in zip(*shown[site], strict=True)]
            rows.append((f"{site} ({' or '.join(roles)})", tiles[:most]))
        return grid(self.name, self.heading(results), rows, columns=min(2, len(rows)) or 1)
