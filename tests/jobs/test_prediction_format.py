"""The memory format of a run: files and predictions do not show in which one it was trained and predicted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from predicting import predicted, trained

from fedshift.data.prepared import Prepared
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths, RunFiles
from fedshift.jobs.predict import Network
from fedshift.study.plan import Plan

TOLERANCE = 1e-4
"""In another format torch adds in another order; this much of it is left in float32 after some steps of SGD."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Plan, Paths, str]]:
    """One run in the automatic format, and one in torch's usual format."""
    out = []
    for name, wanted in (("last", {}), ("first", {"channels_last": False})):
        training = {"rounds": 1, "batch_size": 8, "lr": 0.01, **wanted}
        given = {"model": "resnet20", "inferences": ["source", "tsmobn"], "training": training}
        plan, paths = trained(tmp_path_factory.mktemp(name), **given)
        (run,) = plan.runs
        out.append((plan, paths, run))
    return out


def test_files_of_a_run_have_the_usual_layout(both: list[tuple[Plan, Paths, str]]) -> None:
    for name in ("model", "clients"):
        last, first = (read_tensors(paths.run(run) / f"{name}.safetensors")[0] for _, paths, run in both)
        assert {k: v.shape for k, v in last.items()} == {k: v.shape for k, v in first.items()}
        assert all(v.is_contiguous() for v in last.values())
        assert max(float((v.double() - first[k].double()).abs().max()) for k, v in last.items()) < TOLERANCE


def test_a_run_is_predicted_in_its_format(both: list[tuple[Plan, Paths, str]]) -> None:
    for (plan, paths, run), expected in zip(both, (True, False), strict=True):
        shape = Prepared(paths.data(plan.runs[run].data.id)).shape
        model = Network(plan.runs[run], RunFiles(paths.run(run)).folder, shape, torch.device("cpu")).at("north")
        weight = next(m.weight for m in model.modules() if isinstance(m, torch.nn.Conv2d))
        assert weight.is_contiguous(memory_format=torch.channels_last) is expected
    last, first = (predicted(plan, paths, run, *plan.inferences)[["p0", "p1"]].to_numpy() for plan, paths, run in both)
    np.testing.assert_allclose(last, first, atol=TOLERANCE)


def test_runs_in_either_format_have_ids_of_their_own(both: list[tuple[Plan, Paths, str]]) -> None:
    """A study that leaves the format open keeps the ids that it had when `false` was the default."""
    default, off = (plan.runs[run].training for plan, _, run in both)
    on = off.model_copy(update={"channels_last": True})
    assert [training.identity()["channels_last"] for training in (default, off, on)] == [False, "never", True]
    assert len({run for _, _, run in both}) == 2
