"""The most confident wrong predictions at each external site."""

from __future__ import annotations

from pydantic import Field

from ._base import Figure, Results, SiteMistakes
from ._canvas import short
from ._images import Tile, each_row, grid, private, rows_of


class Mistakes(Figure):
    """Images of each external site with the most confident wrong predictions."""

    title = "Worst mistakes"
    section = "examples"
    shows_images = True
    each: int = Field(6, ge=1, description="largest number of images of a site")

    def caption(self, results: Results) -> str:
        return (
            "The images of each external site whose wrong prediction had the highest probability: below each the "
            "predicted class with its probability, mean over trainings, and the true class. Picking the worst shows "
            f"failures, not typical cases.{private(results.synthetic)}"
        )

    def draw(self, results: Results) -> str:
        sites = results.mistakes(self.each)
        if not sites:
            return self.nothing(results)
        images = each_row(self.each, len(sites))
        rows = [(_heading(site), tiles(site, results.classes)[:images]) for site in sites]
        return grid(self.name, self.heading(results), rows, 1)

    def parts(self, svg: str) -> list[tuple[str, str]]:
        return rows_of(self.name, svg)


def tiles(site: SiteMistakes, classes: tuple[str, ...]) -> list[Tile]:
    """Return the images of a site's mistakes with text below: predicted class, its probability, and true class."""
    return [
        Tile(wrong.image, (f"{wrong.probability:.2f} {classes[wrong.predicted]}", f"true: {classes[wrong.true]}"))
        for wrong in site.worst
    ]


def _heading(site: SiteMistakes) -> str:
    """Return the heading of a site's row: number of wrong predictions, algorithm, prediction method, trainings."""
    over = "1 training" if site.trainings == 1 else f"mean over {site.trainings} trainings"
    by = short(f"{site.condition}, {site.inference}", 60)
    return f"{short(site.site, 24)}: {site.wrong:,} of {site.total:,} wrong ({by}, {over})"
