"""A study with near copies: images of an external site that are training images, saved again as JPEG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scored_study import summarised

from fedshift.analysis.study_results import load
from fedshift.data.prepared import read_partition
from fedshift.io.tables import read_table, write_table
from fedshift.jobs.prepare import seen
from fedshift.page import page

SIDE = 32
SMALL: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0], "inferences": ["source"]}


def pictures(number: int) -> np.ndarray:
    """Smooth random colours (number, 32, 32, 3)."""
    coarse = np.random.default_rng(0).integers(0, 256, (number, 9, 9, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(c).resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for c in coarse])


def saved_again(image: np.ndarray, quality: int) -> np.ndarray:
    """Return an image after JPEG."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, "JPEG", quality=quality)
    return np.asarray(Image.open(io.BytesIO(out.getvalue())))


def with_copies(folder: Path, **changes: Any) -> tuple[Path, dict[str, np.ndarray], list[str]]:
    """Write the page of a study whose external site centre1 has four training images again, as ever worse JPEG files.

    Returns the page, the images by sample, and the samples that were copied; the copy of number k is centre1/k/0.
    """
    plan, paths = summarised(folder, **SMALL, **changes)
    (data,) = plan.data
    files = paths.data_files(data)
    samples = read_table(files.samples).astype({"sample": str})
    run = next(iter(plan.runs.values()))
    assigned = read_partition(paths.partition(run.partition_id))
    trained = assigned[(assigned["split"] == "train") & (assigned["role"] == "internal")]["sample"].tolist()[:4]
    images = dict(zip(samples["sample"], pictures(len(samples)), strict=True))
    for number, sample in enumerate(trained):
        images[f"centre1/{number}/0"] = saved_again(images[sample], (95, 80, 65, 50)[number])
    np.save(files.images, np.stack(list(images.values())))
    pixels, flat, grey, looks = zip(*map(seen, images.values()), strict=True)
    write_table(files.pixels, samples[["sample"]].assign(pixels=pixels, flat=flat, grey=grey, look=looks))
    return page.write(load(plan, paths)), images, trained
