"""Example images of each site."""

from __future__ import annotations

from pydantic import Field

from ._base import Figure, Results
from ._images import Tile, each_row, grid, private


class Patches(Figure):
    """Random images of each site with their classes, which show the feature shift."""

    title = "Example patches"
    section = "examples"
    shows_images = True
    each: int = Field(6, ge=1, description="the most images of a site")

    def caption(self, results: Results) -> str:
        return (
            "Drawn at random from all images of each site, of any class and split, and shown class by class. The "
            f"differences between the rows are the feature shift of this study.{private(results.synthetic)}"
        )

    def draw(self, results: Results) -> str:
        roles = dict.fromkeys(results.external, "external") | dict.fromkeys(results.internal, "internal")
        roles |= {s: "internal or external" for s in results.external if s in results.internal}
        sites = dict.fromkeys(s for s in (*results.internal, *results.external) if s in results.patches)
        images = each_row(self.each, len(sites))
        rows = [(f"{s} ({roles[s]})", tiles(results, s)[:images]) for s in sites]
        return grid(self.name, self.heading(results), rows, columns=min(2, len(rows)) or 1)


def tiles(results: Results, site: str) -> list[Tile]:
    """Return the example images of a site, each with its class where labels are known."""
    images = results.patches[site]
    labels = results.labels.get(site)
    if labels is None:
        return [Tile(image) for image in images]
    return [Tile(image, (results.classes[label],)) for image, label in zip(images, labels, strict=True)]
