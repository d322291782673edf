"""FedRDN: statistics and draws by NumPy, what is exchanged, and that prediction uses a site's own statistics."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_images import STUDY, Project

from fedshift import UserError
from fedshift.algorithms import Traffic
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.prepared import read_partition
from fedshift.data.samples import MappedSamples, at_site, site_statistics
from fedshift.jobs import train as job
from fedshift.jobs.apply import apply, chosen
from fedshift.jobs.predict import predict
from fedshift.jobs.run_images import RunImages
from fedshift.transforms import Transform

CHAIN: tuple[Transform, ...] = tuple(build("transform", name) for name in ("scale_intensity", "flip", "fedrdn"))


def stored(site: int, n: int = 6) -> np.ndarray:
    """Images (n, 4, 5, 3), uint8, darker at later sites."""
    return np.random.default_rng(site).integers(0, 250 // (1 + site), (n, 4, 5, 3), dtype=np.uint8)


def opened(site: int, transforms: Any) -> MappedSamples:
    return MappedSamples(stored(site), np.arange(6), np.zeros(6), transforms)


def statistics(images: np.ndarray) -> np.ndarray:
    """Mean, and mean standard deviation over pixels, of each channel: (2, 3)."""
    x = images / 255
    return np.stack([x.mean((0, 1, 2)), x.std((1, 2)).mean(0)])


KNOWN = [site_statistics(CHAIN, functools.partial(opened, site)) for site in range(3)]
EVERYTHING = np.arange(6)


def test_statistics_are_those_of_images_from_0_to_1_without_augmentation() -> None:
    for site, known in enumerate(KNOWN):
        assert known[:2] == [None, None]
        np.testing.assert_allclose(known[2], statistics(stored(site)), rtol=1e-5)


def test_outside_of_training_a_site_is_normalised_by_its_own() -> None:
    samples = opened(1, at_site(CHAIN, KNOWN[1], KNOWN))
    mean, std = statistics(stored(1))
    expected = ((stored(1) / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(samples.batch(EVERYTHING)[0], expected, atol=1e-4)
    alone = opened(1, at_site(CHAIN, KNOWN[1]))
    assert torch.equal(alone.batch(EVERYTHING)[0], samples.batch(EVERYTHING)[0])


def test_in_training_each_image_draws_a_client() -> None:
    """Mean and deviation come from one client, which is another one for other images and other draws."""
    plain = (CHAIN[0], CHAIN[2])
    known = [site_statistics(plain, functools.partial(opened, site)) for site in range(3)]
    samples, drawn = opened(1, at_site(plain, known[1], known)), []
    assert samples.random
    for key in range(20):
        for image, x in zip(stored(1) / 255, samples.batch(EVERYTHING, stream(key))[0], strict=True):
            (client,) = [
                k
                for k in range(3)
                if np.allclose(
                    x, ((image - statistics(stored(k))[0]) / statistics(stored(k))[1]).transpose(2, 0, 1), atol=1e-3
                )
            ]
            drawn.append(client)
    counts = np.bincount(drawn, minlength=3)
    assert counts.sum() == 120
    assert abs(counts - 40).max() < 3 * (120 * 2 / 9) ** 0.5
    again = samples.batch(EVERYTHING, stream(3))[0]
    assert torch.equal(again, samples.batch(EVERYTHING, stream(3))[0])


def test_with_one_client_or_equal_statistics_it_is_an_ordinary_normalisation() -> None:
    plain = (CHAIN[0], CHAIN[2])
    known = site_statistics(plain, functools.partial(opened, 2))
    for clients in ([known], [known, known, known]):
        samples = opened(2, at_site(plain, known, clients))
        assert torch.equal(samples.batch(EVERYTHING, stream(0))[0], samples.batch(EVERYTHING)[0])
    different = opened(2, at_site(plain, known, [known, KNOWN[0][1:]]))
    assert not torch.equal(different.batch(EVERYTHING, stream(0))[0], different.batch(EVERYTHING)[0])


def test_images_that_are_not_from_0_to_1_are_refused() -> None:
    for wrong in ((CHAIN[2],), (CHAIN[0], build("transform", "normalize"), CHAIN[2])):
        with pytest.raises(
            UserError, match=r"acts on images from 0 to 1, and these reach from .*; put scale_intensity"
        ):
            site_statistics(wrong, functools.partial(opened, 0))


def test_nothing_is_read_for_other_transforms() -> None:
    def never(_: Any) -> Any:
        raise AssertionError

    known = site_statistics(CHAIN[:2], never)
    assert at_site(CHAIN[:2], known, [known]) == CHAIN[:2]


# ---- a whole study


@pytest.fixture(scope="module")
def prepared_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STUDY, "transforms", ["scale_intensity", "fedrdn"])
        return Project(tmp_path_factory.mktemp("fedrdn"))


def test_clients_hear_of_each_other_unless_they_train_alone(prepared_project: Project) -> None:
    for run in prepared_project.plan.runs.values():
        images = RunImages(run, prepared_project.paths, "cpu")
        clients, _, watched, sent = job._sites(run, images)
        heard = {name: [len(getattr(t, "clients", ())) for t in c.transforms] for name, c in clients.items()}
        expected = 1 if run.algorithm.name == "local" else 2
        assert heard == {"north": [0, 0, expected], "south": [0, 0, expected]}
        assert not watched
        floats = 0 if run.algorithm.name == "local" else 2 * 2 * images.prepared.shape[0]
        assert sent == Traffic(down=floats, down_broadcast=floats, up=floats), "mean and deviation of each channel"


def test_every_site_is_predicted_with_its_own_statistics(prepared_project: Project, tmp_path: Path) -> None:
    """Of training images inside, of all its images outside; `apply` finds the same for the files of a site."""
    (run,) = [run for run in prepared_project.plan.runs.values() if run.algorithm.name == "fedavg"]
    images = RunImages(run, prepared_project.paths, "cpu")
    partition = read_partition(prepared_project.paths.partition(run.partition_id))
    for site, split in (("north", "train"), ("far", "test")):
        part = partition[(partition["site"] == site) & (partition["split"] == split)]
        expected = statistics(np.stack([images.prepared.images[row] for row in images.prepared.rows(part)]))
        test = images.samples(partition[(partition["site"] == site) & (partition["split"] == "test")])
        np.testing.assert_allclose(test.transforms[1].own, expected, rtol=1e-5)  # type: ignore[attr-defined]
    out = tmp_path / "predictions.parquet"
    predict(prepared_project.paths.run(run.id), {"source": chosen("source", [], None)}, prepared_project.paths, out)
    import pandas as pd

    far = pd.read_parquet(out).query("site == 'far'").set_index("sample")
    applied = apply(
        prepared_project.paths.run(run.id), prepared_project.table, chosen("source", [], None), tmp_path / "out"
    ).table
    applied = applied[applied["site"] == "far"]
    np.testing.assert_allclose(sorted(applied["p1"]), sorted(far["p1"]), rtol=1e-4)


def test_a_bundle_is_refused(prepared_project: Project, tmp_path: Path) -> None:
    from fedshift.export.bundle import export

    (run,) = [run for run in prepared_project.plan.runs.values() if run.algorithm.name == "fedavg"]
    with pytest.raises(UserError, match="fedrdn takes statistics of all images of a site"):
        export(prepared_project.paths.run(run.id), chosen("source", [], None), tmp_path / "bundle")
