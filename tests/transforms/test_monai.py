"""Transforms of MONAI by name: what MONAI itself gives for each image's seed, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from monai import transforms

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.samples import MappedSamples
from fedshift.transforms import shape_after


def made(transform: str, always: bool = False, **settings: Any) -> Any:
    return build("transform", {"name": "monai", "transform": transform, "settings": settings, "always": always})


def images(n: int = 4, side: int = 8) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((n, 3, side, side), dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("RandGaussianNoise", {"prob": 1.0, "std": 0.2}),
        ("RandAdjustContrast", {"prob": 0.5, "gamma": [0.5, 2.0]}),
        ("RandCoarseDropout", {"holes": 2, "spatial_size": 3, "prob": 0.7}),
        ("RandRotate", {"range_x": 0.5, "prob": 0.9}),
        ("RandZoom", {"prob": 1.0}),
    ],
)
def test_each_image_is_what_monai_makes_of_it_with_a_seed_of_its_own(name: str, settings: dict[str, Any]) -> None:
    x = images()
    before = x.clone()
    out = made(name, **settings).apply(x, stream("t"))
    assert torch.equal(x, before)
    assert (type(out), out.dtype, out.shape) == (torch.Tensor, x.dtype, x.shape)
    for image, got, seed in zip(x, out, stream("t").integers(0, 2**32, len(x)).tolist(), strict=True):
        direct = getattr(transforms, name)(**settings).set_random_state(seed)
        assert torch.equal(torch.as_tensor(np.asarray(direct(image.clone()))), got)
    assert not torch.equal(out, x)
    other = made(name, **settings).apply(x[:1].expand(4, -1, -1, -1), stream("t"))
    assert len({tuple(image.flatten().tolist()) for image in other}) > 1, "equal images are changed differently"


def test_a_class_that_draws_nothing_acts_in_training_or_always() -> None:
    x = images()
    smooth = made("GaussianSmooth", sigma=2.0)
    assert smooth.when == "train"
    rng = stream(0)
    out = smooth.apply(x, rng)
    assert rng.random() == stream(0).random(), "nothing is drawn"
    assert torch.equal(torch.as_tensor(np.asarray(transforms.GaussianSmooth(2.0)(x[1]))), out[1])
    larger = made("Resize", always=True, spatial_size=[12, 10])
    assert larger.when == "always"
    assert shape_after((larger,), (3, 8, 8)) == (3, 12, 10)
    stored = (images() * 255).permute(0, 2, 3, 1).to(torch.uint8).numpy()
    samples = [MappedSamples(stored, np.arange(4), np.zeros(4), (t,)) for t in (smooth, larger)]
    assert [s.random for s in samples] == [True, False]
    assert torch.equal(samples[0].batch(np.arange(4))[0], torch.from_numpy(stored).permute(0, 3, 1, 2).float())
    assert samples[1].batch(np.arange(4))[0].shape == (4, 3, 12, 10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"transform": "RandGausianNoise"},
            "unknown class 'RandGausianNoise' of monai.transforms; did you mean 'RandG",
        ),
        ({"transform": "RandFlipd"}, "unknown class 'RandFlipd' of monai.transforms; did you mean 'RandFlip'"),
        ({"transform": "RandFlip", "settings": {"probb": 1}}, "unknown setting 'probb'; did you mean 'prob'"),
        ({"transform": "RandGaussianNoise", "settings": {"prob": 2}}, r"\.settings\.prob: is 2, which is not a prob"),
        ({"transform": "RandRotate90", "settings": {"max_k": "a"}}, r"\(RandRotate90\): "),
        ({"transform": "Resize"}, "MONAI refuses its settings: .*spatial_size"),
        ({"transform": "RandFlip", "always": True}, "draws at random, and a prediction must not; leave out `always`"),
        ({"transform": "CutMix", "settings": {"batch_size": 2}}, r"transform monai \(CutMix\): "),
        ({"transform": "SplitDim"}, "returns no image of 3 channels"),
        ({"transform": "RandSpatialCrop", "settings": {"roi_size": 4, "random_size": False}}, "changes the size"),
        (
            {"transform": "CenterSpatialCrop", "settings": {"roi_size": "a"}},
            r"\(CenterSpatialCrop\): fails on an image",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line_by_the_check(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("transform", {"name": "monai", **given}).require((3, 8, 8))
    assert "\n" not in str(caught.value)


def test_other_transforms_need_nothing() -> None:
    for name in ("flip", "resize", "scale_intensity"):
        build("transform", name).require((3, 8, 8))


def test_a_study_with_it_is_read_without_monai() -> None:
    code = (
        "import sys; from fedshift.core.registry import build; "
        "t = build('transform', {'name': 'monai', 'transform': 'RandFlip', 'settings': {'prob': 1}}); "
        "hash(t), t.when, t.label; print('monai' in sys.modules, 'torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
