"""Figures that show images: which ones, with which words, and how heavy they are."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_study
import numpy as np
import pandas as pd
import pytest
from invented import made
from PIL import Image
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.core import registry
from fedshift.figures import Mistake, Results, SiteMistakes
from fedshift.study.plan import Run

NASTY = '<b>"&$x</b>'


def lines(svg: str) -> list[str]:
    """The texts of a figure, without its title."""
    return ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def images(svg: str) -> list[np.ndarray[Any, Any]]:
    texts = [e.get("href") or "" for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("image")]
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(t.partition(",")[2])))) for t in texts]


def flat(value: int, side: int = 8) -> np.ndarray[Any, Any]:
    return np.full((side, side, 3), value, dtype=np.uint8)


def test_patches_have_their_classes_below_and_stay_as_they_are_stored() -> None:
    shown = {
        "x": (np.stack([flat(k) for k in (10, 20, 30)]), np.array([0, 0, 1])),
        "y": (np.stack([flat(k) for k in (40, 50)]), np.array([1, 1])),
    }
    given = dataclasses.replace(made(), images=lambda each: shown, internal=("x",), external=("y",))
    svg = registry.build("figure", "patches").draw(given)
    assert lines(svg) == ["x (internal)", "a", "a", "b", "y (external)", "b", "b"]
    assert [int(image[0, 0, 0]) for image in images(svg)] == [10, 20, 30, 40, 50]
    assert {image.shape for image in images(svg)} == {(8, 8, 3)}


def test_example_images_come_class_by_class(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path)
    loaded = study_results.load(plan, paths)
    shown = loaded.for_figures
    samples = loaded.samples(next(iter(plan.data)))
    stored = np.load(paths.data(next(iter(plan.data))) / "images.npy")
    for site, (patches, labels) in shown.images(6).items():
        assert sorted(labels) == list(labels)
        rows = [int(np.flatnonzero((stored == image).all((1, 2, 3)))[0]) for image in patches]
        assert len(rows) == 6
        assert samples["label"].iloc[rows].tolist() == list(labels)
        assert set(samples["site"].iloc[rows]) == {site}


def failures(site: str = "far", count: int = 2, side: int = 8) -> SiteMistakes:
    worst = tuple(Mistake(flat(10 * n, side), true=0, predicted=1, probability=0.9 - n / 10) for n in range(count))
    return SiteMistakes(site, "FedAvg, local BN", "Source", 3, 12, 1000, worst)


def with_mistakes(*sites: SiteMistakes, **changes: Any) -> Results:
    return dataclasses.replace(made(), mistakes=lambda each: sites, **changes)


def test_mistakes_say_what_was_predicted_and_what_is_true() -> None:
    svg = registry.build("figure", "mistakes").draw(with_mistakes(failures(), failures("east", 0)))
    assert lines(svg) == [
        "far: 12 of 1,000 wrong (FedAvg, local BN, Source, mean over 3 trainings)",
        *("0.90 b", "true: a", "0.80 b", "true: a"),
        "east: 12 of 1,000 wrong (FedAvg, local BN, Source, mean over 3 trainings)",
    ]


@pytest.mark.parametrize("sites", [1, 30])
def test_noise_of_many_sites_stays_light_and_names_stay_text(sites: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 96, 96, 3), dtype=np.uint8)
    worst = tuple(Mistake(image, 0, 1, 0.5) for image in noise)
    many = [dataclasses.replace(failures(f"{NASTY}{n}"), condition=NASTY, worst=worst) for n in range(sites)]
    svg = registry.build("figure", "mistakes").draw(with_mistakes(*many, classes=(NASTY, NASTY)))
    assert len(svg) < 200_000
    assert "<b>" not in svg
    assert len(images(svg)) == (6 if sites == 1 else 2 * sites)


def test_whose_images_are_shown_is_said_as_for_patches() -> None:
    figure = registry.build("figure", "mistakes")
    assert "write figures: [convergence, sites] in the study" in figure.caption(made())
    invented = dataclasses.replace(made(), synthetic=True)
    assert "no hospital made them" in figure.caption(invented)
    assert "failures, not typical cases" in figure.caption(invented)


RIGHT = {0: 0.6, 1: 0.9, 2: 0.3}
"""By seed: the probability of class 1 of the first image of each patient, of class 0: 0.6 on the mean."""


def test_the_worst_mistakes_are_of_mean_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first image of a patient is wrong with 0.6 on the mean, though right in one training; the third with 0.8.

    The trainings have 12, 12 and 6 wrong images: 10 on the mean, as the tables count.
    """

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        order = table.groupby("patient").cumcount()
        wrong = np.where(order == 0, RIGHT[run.seed], np.where(order == 2, 0.8, 0.1))
        p1 = np.where(table["label"] == 1, 0.9, wrong)
        return table.assign(p1=p1, p0=1 - p1)[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "predict", predict)
    plan, paths = summarised(tmp_path, figures=["mistakes"])
    loaded = study_results.load(plan, paths)
    first, second = loaded.for_figures.mistakes(8)
    assert (first.site, second.site) == fake_study.EXTERNAL
    each = fake_study.PATIENTS * fake_study.PER_PATIENT
    assert (first.condition, first.trainings, first.wrong, first.total) == (
        "FedAvg, aggregated BN",
        3,
        (2 + 2 + 1) * fake_study.PATIENTS / 3,
        each,
    )
    assert [one.probability for one in first.worst] == pytest.approx([0.8] * 6 + [0.6] * 2)
    assert {(one.true, one.predicted) for one in first.worst} == {(0, 1)}
    samples = loaded.samples(next(iter(plan.data)))["sample"].tolist()
    stored = np.load(paths.data(next(iter(plan.data))) / "images.npy")
    wanted = [f"centre1/{patient}/2" for patient in range(6)] + ["centre1/0/0", "centre1/1/0"]
    for one, sample in zip(first.worst, wanted, strict=True):
        assert np.array_equal(one.image, stored[samples.index(sample)])
    svg = study_results.draw(study_results.load(plan, paths), "mistakes").read_text(encoding="utf-8")
    assert "0.80" in svg
    assert fake_study.EVIL not in svg


def test_clients_that_train_alone_have_no_mistakes_outside(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, runs=[{"algorithm": ["local", "fedavg"]}], figures=["mistakes"])
    (first, _) = study_results.load(plan, paths).for_figures.mistakes(1)
    assert first.condition == "FedAvg, aggregated BN"


def test_mistakes_of_each_site_can_be_opened_by_themselves() -> None:
    """Every part is an SVG of its own, without its heading, which stands above it."""
    figure = registry.build("figure", "mistakes")
    svg = figure.draw(with_mistakes(failures(NASTY), failures("east", 0)))
    (first, one), (second, other) = figure.parts(svg)
    assert first.startswith(f"{NASTY}: ") and second.startswith("east: ")
    for n, (title, part) in enumerate(((first, one), (second, other))):
        root = ElementTree.fromstring(part)
        assert root[0].text == title and root[0].get("id") == f"mistakes-{n}-title"
        assert "wrong (" not in "".join(text for element in root[1:] for text in element.itertext())
    assert one.count("<image") == svg.count("<image") - other.count("<image") > 0
    assert registry.build("figure", "patches").parts(svg) == []
