"""Predicted masks of new images: areas of structures, in words, tables and a figure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..analysis.table import Table
from ..analysis.values import DASH, listed
from ..figures._canvas import COLOURS, WIDTH, short, svg
from ..io.images import COLOURS as LINES
from ..io.images import LARGEST
from ..jobs.apply import Applied
from .html import Drawn, Tile, plain
from .new_images import MOST, NewImages, share

BINS = 20


class NewMasks(NewImages):
    """The predicted masks of a run for new images.

    Attributes
    ----------
    structures : the name of each structure with the column of its share of an image
    """

    changed = "outlines"
    edge = 192

    def __init__(self, applied: Applied) -> None:
        super().__init__(applied)
        columns = [name for name in map(str, self.table) if name.startswith("share_")]
        self.structures = {name.removeprefix("share_"): name for name in columns}
        self.is_cut = applied.scaled > 0 and not applied.run.data.dataset.padded

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return what the template shows of predicted masks; see `NewImages`."""
        names = listed(list(self.structures))
        colours = listed([f"{name} {colour}" for name, colour in zip(self.structures, _lines(), strict=False)])
        return {
            "lead": self._lead(),
            "tiles": list(self._tiles()),
            "tables": [plain(self._areas()), *([plain(self._by_site())] if len(self.sites) > 1 else [])],
            "metrics": None,
            "figure": Drawn(
                "Predicted areas",
                "Images by the predicted area of each structure, as a share of the image; images in which the "
                "structure is not predicted are left out.",
                self._figure(),
            ),
            "care": [
                f"The network outlines {names} and nothing else: it may outline what is something else, and miss what "
                "is there.",
                "How good outlines are at a new site is not known without masks drawn by a reader.",
                "Areas are counted in pixels of each image's file, and are not in millimetres.",
                *(["The network saw no pixel that was cut off: there, a mask is background."] if self.is_cut else []),
            ],
            "examples_note": f"Drawn at random, with the predicted outlines: {colours}. The folder overlays has every "
            f"image so, of at most {LARGEST:,} pixels along a side.",
            "sorts": {
                0: ("No structure is predicted", "An image without a predicted structure"),
                1: ("A structure is predicted", "An image with the outline of what is predicted"),
            },
        }

    def _found(self, name: str, site: str | None = None) -> Any:
        """Return the shares of a structure (k,), in percent, in the images in which it is predicted."""
        shares = self.at(site)[self.structures[name]]
        return 100 * shares[shares > 0]

    def _lead(self) -> str:
        total = len(self.table)
        parts = []
        for name in self.structures:
            found = self._found(name)
            text = f"{name} in {share(len(found), total)}\N{NO-BREAK SPACE}%"
            if len(found):
                text += f" (in the median, {found.median():.1f}\N{NO-BREAK SPACE}% of such an image)"
            parts.append(text)
        return (
            f"{total:,} images: the network outlines {listed(parts)}. Without masks drawn by a reader, nothing here "
            "says whether that is right."
        )

    def _tiles(self) -> Iterator[Tile]:
        total = len(self.table)
        yield Tile("Images", f"{total:,}", self.taken())
        for name in list(self.structures)[:2]:
            found = self._found(name)
            yield Tile(f"{short(name)} predicted", f"{share(len(found), total)} %", f"{len(found):,} images")
        empty = int((self.table[list(self.structures.values())] == 0).all(axis=1).sum())
        yield Tile("No structure", f"{share(empty, total)} %", f"{empty:,} images")

    def _areas(self) -> Table:
        """Return in how many images each structure is predicted, and how large it is there."""
        rows = []
        for name in self.structures:
            found = self._found(name)
            sizes = [f"{value:.2f}" for value in found.quantile([0, 0.5, 1])] if len(found) else [DASH] * 3
            rows.append((name, f"{len(found):,}", share(len(found), len(self.table)), *sizes))
        header = ("Structure", "Images with it", "Share (%)", "Smallest area (%)", "Median (%)", "Largest (%)")
        return Table("Predicted structures; areas are shares of such an image", header, tuple(rows))

    def _by_site(self) -> Table:
        """Return the same at each site, for the share of images and the median area."""
        rows = []
        for site in self.sites[:MOST]:
            total = len(self.at(site))
            cells = [str(site), f"{total:,}"]
            for name in self.structures:
                found = self._found(name, site)
                cells += [share(len(found), total), f"{found.median():.2f}" if len(found) else DASH]
            rows.append(tuple(cells))
        header = ["Site", "Images"]
        for name in self.structures:
            header += [f"{name}: images (%)", f"{name}: median area (%)"]
        return Table(f"Predicted structures at each site{self.first()}", tuple(header), tuple(rows))

    def _figure(self) -> str:
        """Return a figure of the areas of each structure."""

        def paint(figure: Any) -> None:
            grid = figure.subplots(1, len(self.structures), squeeze=False)[0]
            for axes, name in zip(grid, self.structures, strict=True):
                axes.hist(self._found(name), bins=BINS, color=COLOURS[0])
                axes.set(xlabel="area (% of the image)", title=short(name))
                axes.yaxis.get_major_locator().set_params(integer=True)
            grid[0].set_ylabel("images")

        return svg("applied", "Images by the predicted area of each structure", (WIDTH, 2.6), paint)


def _lines() -> Iterator[str]:
    """Yield the names of the colours of structures, in turn."""
    while True:
        yield from LINES
