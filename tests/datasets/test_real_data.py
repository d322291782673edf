"""Own images for real: the histology archive through manifest, mirror, prepare and partition. It is not part of us."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import real_data
from PIL import Image

from fedshift import study
from fedshift.data.prepared import Prepared
from fedshift.jobs import prepare

ROOT = Path(__file__).parents[2]
ARCHIVE = real_data.FOLDER / "histology_sites.tar"
COUNTS = {  # images, tumour, patients: as its README says
    "karolinska": (1000, 500, 110),
    "radboud": (500, 500, 13),
    "oral": (1000, 500, 790),
    "osteosarcoma": (698, 500, 4),
    "breakhis": (443, 221, 28),
    "lc25000": (828, 500, 100),
}

pytestmark = real_data.needs(ARCHIVE.name)


@pytest.fixture(scope="module")
def plan() -> study.Plan:
    return study.load(ROOT / "config" / "studies" / "own-hospitals-example.yaml", "mini")


@pytest.fixture(scope="module")
def made(plan: study.Plan, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("histology")
    (data,) = plan.data.values()
    prepare.obtain(data, folder / "raw", real_data.FOLDER)
    prepare.prepare(data, folder / "raw", folder / "out", threads=1)
    return Prepared(folder / "out")


def test_counts_are_those_of_the_readme(made: Prepared) -> None:
    found = made.samples.groupby("site").agg(
        images=("label", "size"), tumour=("label", "sum"), patients=("patient", "nunique")
    )
    assert {site: tuple(row) for site, row in zip(found.index, found.to_numpy().tolist(), strict=True)} == COUNTS
    assert made.images.shape == (4469, 96, 96, 3)
    assert json.loads((made.folder / "card.json").read_text())["sites"]["oral"] == {"images": 1000, "patients": 790}


def test_pixels_are_those_of_the_archive(made: Prepared) -> None:
    with tarfile.open(ARCHIVE) as tar:
        for i in (0, 1500, 4468):
            member = tar.extractfile(made.samples["sample"][i])
            assert member is not None
            with Image.open(member) as image:
                np.testing.assert_array_equal(made.images[i], np.asarray(image.convert("RGB")))


def test_no_slide_is_torn_apart_and_every_split_has_both_classes(plan: study.Plan, made: Prepared) -> None:
    run = next(iter(plan.runs.values()))
    assigned = run.partition.assign(made.samples)
    assert len(assigned) == 4469
    both = assigned.merge(made.samples[["sample", "patient", "label"]])
    inside = both[both["role"] == "internal"]
    assert set(inside["site"]) == set(run.partition.internal)
    assert (inside.groupby(["site", "patient"])["split"].nunique() == 1).all()
    assert (inside.groupby(["site", "split"])["label"].nunique() == 2).all()
    assert set(both.loc[both["role"] == "external", "split"]) == {"test"}
    share = inside.groupby(["site", "split"]).size() / inside.groupby("site").size()
    wanted = pd.Series({"train": 0.7, "val": 0.1, "test": 0.2})
    assert (share.unstack() - wanted).abs().to_numpy().max() < 0.06


def test_the_archive_is_the_one_that_the_study_names(plan: study.Plan) -> None:
    with ARCHIVE.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    assert plan.study.dataset.model_dump()["sha256"] == content
