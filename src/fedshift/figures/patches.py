"""Example images of each site."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from pydantic import Field

from ._base import Figure, Results
from ._canvas import frame

if TYPE_CHECKING:
    import numpy as np

_EDGES = (96, 72, 56, 44, 32, 24, 16)
_LIMIT = 200_000


class Patches(Figure):
    """Random images of each site, which show the feature shift."""

    title = "Example patches"
    each: int = Field(6, ge=1, description="the most images of a site")

    def caption(self, results: Results) -> str:
        note = (
            " The images are synthetic: no hospital made them."
            if results.synthetic
            else " The page contains these images: to share it without them, write "
            "figures: [convergence, sites] in the study, and run it again."
        )
        return (
            "Drawn at random from all images of each site, of any class and split. The differences between "
            f"the rows are the feature shift of this study.{note}"
        )

    def draw(self, results: Results) -> str:
        roles = dict.fromkeys(results.external, "external") | dict.fromkeys(results.internal, "internal")
        roles |= {s: "internal or external" for s in results.external if s in results.internal}
        sites = [s for s in (*results.internal, *results.external) if s in results.patches]
        rows = {s: f"{s} ({roles[s]})" for s in dict.fromkeys(sites)}
        each = max(2, min(self.each, 48 // max(1, len(rows))))
        for edge in _EDGES:  # the largest that keeps the page light
            pngs = {s: [png(image, edge) for image in results.patches[s][:each]] for s in rows}
            if sum(len(one) for row in pngs.values() for one in row) < _LIMIT:
                break
        return self._grid(rows, pngs, f"{self.title}: {self.caption(results)}")

    def _grid(self, rows: dict[str, str], pngs: dict[str, list[str]], title: str) -> str:
        """Return two columns of sites, each a name above a row of images."""
        most = max((len(row) for row in pngs.values()), default=1)
        columns = 2 if len(rows) > 1 else 1
        gap, label = 4, 20
        width = 640 if columns == 2 else 320
        side = (width / columns - 12) / most - gap
        step = side + label + 14
        body = []
        for n, (site, name) in enumerate(rows.items()):
            x, y = (n % columns) * width / columns, (n // columns) * step
            body.append(f'<text x="{x:.1f}" y="{y + 13:.1f}" fill="currentColor" font-size="11">{escape(name)}</text>')
            body += [
                f'<image x="{x + k * (side + gap):.1f}" y="{y + label:.1f}" width="{side:.1f}" height="{side:.1f}" '
                f'href="data:image/png;base64,{data}"/>'
                for k, data in enumerate(pngs[site])
            ]
        return frame(self.name, title, (width, step * -(-len(rows) // columns)), "\n".join(body))


def png(image: np.ndarray, edge: int) -> str:
    """Return an image (height, width, channels) as a base64 PNG of at most `edge` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image[..., :3])
    if max(picture.size) > edge:
        picture = picture.resize(
            [max(1, round(edge * s / max(picture.size))) for s in picture.size], Image.Resampling.BOX
        )
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
