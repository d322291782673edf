"""A hospital a file: SITE.npz with images, labels and patients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedshift.core.rng import stream
from fedshift.datasets import Card, Dataset, Opened
from fedshift.io.download import Source

SITES = ("alpha", "beta", "gamma")


class NpzSites(Dataset):
    """Images of 8x8 pixels from arrays, one file for each hospital, with patients."""

    shape: ClassVar[tuple[int, ...] | None] = (3, 8, 8)
    classes: tuple[str, ...] = Field(("calm", "busy"), description="names of the labels 0 and 1")
    images: int = Field(40, ge=20, description="of the miniature only: images of each hospital")

    def card(self) -> Card:
        return Card(title="Arrays of hospitals", version="1", source="invented", licence="CC0", citation="none")

    def sources(self) -> Sequence[Source]:
        return [Source(None, f"{site}.npz", page="ask the hospitals") for site in SITES]

    def open(self, raw: Path) -> Opened:
        import numpy as np
        import pandas as pd

        parts = []
        arrays = []
        for site in SITES:
            with np.load(raw / f"{site}.npz") as file:
                n = len(file["images"])
                arrays.append(file["images"])
                names = [f"{site}-{k}" for k in range(n)]
                patients = [f"{site}-{p}" for p in file["patients"]]
                parts.append(
                    pd.DataFrame({"sample": names, "site": site, "label": file["labels"], "patient": patients})
                )
        images = np.concatenate(arrays)
        return Opened(pd.concat(parts, ignore_index=True), lambda i: images[i])

    def miniature(self, raw: Path) -> None:
        import numpy as np

        for k, site in enumerate(SITES):
            rng = stream("npz sites", site)
            labels = np.arange(self.images) % 2
            noise = rng.normal(size=(self.images, 8, 8, 3)) * (12 + 25 * labels)[:, None, None, None]
            images = (90 + 30 * k + noise).clip(0, 255).astype(np.uint8)
            np.savez(raw / f"{site}.npz", images=images, labels=labels, patients=np.arange(self.images) // 2)
