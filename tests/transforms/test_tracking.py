"""MONAI's switch for its records of transforms is as it was after a batch was transformed, also by several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from monai.data import get_track_meta, set_track_meta

from fedshift.core.registry import build
from fedshift.transforms.monai import without_tracking


@pytest.fixture(params=[True, False])
def switch(request):
    set_track_meta(request.param)
    yield request.param
    set_track_meta(True)


FLIP = {"name": "monai", "transform": "RandFlip", "settings": {"prob": 0.5}}


def test_a_transform_leaves_the_switch_alone_and_returns_plain_tensors(switch):
    x = torch.rand(4, 3, 8, 8)
    transformed = build("transform", FLIP).apply(x, np.random.default_rng(0))
    assert type(transformed) is torch.Tensor
    assert get_track_meta() is switch


def test_an_error_inside_leaves_the_switch_alone(switch):
    with pytest.raises(ZeroDivisionError), without_tracking():
        assert get_track_meta() is False
        raise ZeroDivisionError
    assert get_track_meta() is switch


def test_threads_leave_the_switch_alone(switch):
    flip, x = build("transform", FLIP), torch.rand(4, 3, 8, 8)
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda seed: flip.apply(x, np.random.default_rng(seed % 3)), range(60)))
    assert get_track_meta() is switch
    assert all(torch.equal(batch, batches[n % 3]) for n, batch in enumerate(batches)), "each from its own numbers"
