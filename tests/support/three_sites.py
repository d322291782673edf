"""A study of own images for real sites, with the table of each site in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image

SITES = ("east", "north", "south")
STUDY: dict[str, Any] = {
    "title": "A few images at each of three sites",
    "dataset": {"name": "own_images", "size": 16, "classes": ["benign", "tumour"], "table": "images.csv"},
    "partition": {"internal": [*SITES], "split": {"train": 0.5, "val": 0.25, "test": 0.25}},
    "model": "densenet_small",
    "transforms": ["scale_intensity"],
    "training": {"rounds": 2, "batch_size": 4, "lr": 0.05, "select": "last"},
    "runs": [{"algorithm": "scaffold", "bn": "local"}],
    "seeds": [0],
    "inferences": ["source"],
}


def write(root: Path, study: dict[str, Any] = STUDY, images: int = 16) -> None:
    """Write root/SITE/images.csv with images, and the study into each site's folder and into root/server."""
    rng = np.random.default_rng(0)
    for k, site in enumerate(SITES):
        folder = root / site
        folder.mkdir(parents=True)
        rows = []
        for i in range(images + 4 * k):
            pixels = rng.integers(0, 120, (16, 16, 3)) + 30 * k + 60 * (i % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"secret-{i:02d}.png")
            rows.append(
                {"path": f"secret-{i:02d}.png", "label": i % 2, "site": site, "patient": f"Doe {site} {i // 2}"}
            )
        pd.DataFrame(rows).to_csv(folder / "images.csv", index=False)
    (root / "server").mkdir()
    for folder in (*SITES, "server"):
        (root / folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
