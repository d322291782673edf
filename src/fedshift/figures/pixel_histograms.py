"""Histograms of pixel values by site, as in FedBN's figure 6b."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from pydantic import Field

from ._base import Figure, Results
from ._canvas import short, styles

BINS = 32
CHANNELS = {1: ("grey",), 3: ("red", "green", "blue")}


class PixelHistograms(Figure):
    """Histograms of pixel values by site and channel, of random prepared images: the shift before any network.

    The caption names the two sites whose histograms are farthest apart.
    """

    title = "Pixel values of the sites"
    each: int = Field(100, ge=1, description="largest number of images of a site")

    def caption(self, results: Results) -> str:
        shares = self._shares(results)
        if not shares:
            return "This figure needs images of two dimensions that are prepared."
        how = (
            f"Prepared images, at most {self.each} a site, at random from all splits; {BINS} bins of 0 to 255, in "
            "percent of the pixels. A bin at either end may be higher than the panel."
        )
        if len(shares) == 1:
            return how
        pairs = itertools.combinations(shares, 2)
        far, site, beside = max((distance(shares[a], shares[b]), a, b) for a, b in pairs)
        return (
            f"{how} Farthest apart are {site} and {beside}, whose histograms share {100 - 100 * far:.0f} % of their "
            "area. Sites that differ here differ in light, colour or scanner, or in what they show: the figure cannot "
            "tell these apart, and alike histograms do not prove alike images."
        )

    def draw(self, results: Results) -> str:
        shares = self._shares(results)
        if not shares:
            return self.nothing(results)
        most = max(len(share) for share in shares.values())
        names = CHANNELS.get(most, [f"channel {k + 1}" for k in range(most)])
        looks = styles(shares)
        # Black and white borders would press all else to the bottom.
        top = 110 * max(float(share[:, 1:-1].max()) for share in shares.values()) or 100.0

        def panel(axes: Any, channel: int) -> None:
            for site, share in shares.items():
                if channel < len(share):
                    edges = np.linspace(0, 256, BINS + 1)
                    axes.stairs(100 * share[channel], edges, label=short(site), linewidth=1.5, **looks[site])
            axes.set(xlim=(0, 256), ylim=(0, top))

        above = {channel: name.capitalize() for channel, name in enumerate(names)}
        return self.panels(results, above, panel, map(short, shares), names=("Pixel value", "Pixels (%)"), sharey=True)

    def _shares(self, results: Results) -> dict[str, np.ndarray]:
        """Return the histograms of each site's images (see `histograms`), by site in the order of the study."""
        images = results.images(self.each)
        return {site: histograms(images[site][0]) for site in results.sites if site in images}


def histograms(images: np.ndarray) -> np.ndarray:
    """Return the share of pixels in each bin (channels, BINS), for images (n, height, width, channels), uint8."""
    bins = (images.astype(np.intp) * BINS // 256).reshape(-1, images.shape[-1])
    return np.stack([np.bincount(channel, minlength=BINS) for channel in bins.T]) / len(bins)


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the total variation distance of two histograms (channels, BINS), mean over channels, from 0 to 1.

    It is 1 minus the area that both histograms share. Histograms with different numbers of channels have distance 1.
    """
    return 1.0 if first.shape != second.shape else float(np.abs(first - second).sum(axis=1).mean() / 2)
