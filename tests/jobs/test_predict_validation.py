"""Predictions of validation samples, which leave those of test samples as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pandas as pd
import pytest
from predicting import EXTERNAL, INTERNAL, by_hand, images_of, predicted, state_of, trained, written

import fedshift.jobs.predict
from fedshift.core.errors import UserError
from fedshift.datasets.own_images import OwnImages
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs.run_images import RunImages
from fedshift.study.plan import Plan

PERSONAL: dict[str, Any] = {"name": "source", "personalise": {"source": "val", "batch_size": 4}}
INFERENCES = ["source", {"name": "tsmobn", "batch_size": 8}, "tent", PERSONAL]


@pytest.fixture(scope="module")
def trained_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    return trained(tmp_path_factory.mktemp("validation"), inferences=INFERENCES)


def test_validation_samples_of_internal_sites_are_predicted_anew(trained_study: tuple[Plan, Paths]) -> None:
    """TsmoBN begins with the first batch of validation samples, as if there had been no test samples."""
    plan, paths = trained_study
    (run,) = plan.runs
    partition = read_table(paths.partition(plan.runs[run].partition_id))
    for name in list(plan.inferences)[:2]:
        val = written(plan, paths, run, name).query("split == 'val'")
        assert set(val["site"]) == set(INTERNAL) and set(val["role"]) == {"internal"}
        assert val["sample"].tolist() == [
            sample for site in INTERNAL for sample in partition.query("split == 'val' and site == @site")["sample"]
        ]
        for site, part in val.groupby("site"):
            x = images_of(plan, paths, run, part)
            expected = by_hand(state_of(paths, run, str(site)), x, plan.inferences[name])
            assert part[["p0", "p1"]].to_numpy() == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_test_samples_keep_every_bit(trained_study: tuple[Plan, Paths], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = trained_study
    (run,) = plan.runs
    together = predicted(plan, paths, run, *plan.inferences)
    by_site = RunImages.by_site
    monkeypatch.setattr(
        RunImages,
        "by_site",
        lambda self, split, sites: by_site(self, split, sites) if split == "test" else {},
    )
    unlabelled = [name for name, inference in plan.inferences.items() if not inference.uses_labels]
    alone = predicted(plan, paths, run, *unlabelled)
    assert set(alone["site"]) == {*INTERNAL, *EXTERNAL} and set(alone["inference"]) == set(unlabelled)
    same = together[together["inference"].isin(unlabelled)].reset_index(drop=True)
    pd.testing.assert_frame_equal(same[alone.columns], alone, check_exact=True)


def test_inferences_that_use_labels_and_many_classes_predict_test_samples_alone(
    trained_study: tuple[Plan, Paths], tmp_path: Path
) -> None:
    plan, paths = trained_study
    (run,) = plan.runs
    assert set(written(plan, paths, run, list(plan.inferences)[-1])["split"]) == {"test"}
    three = OwnImages(table=Path("images.csv"), size=8, classes=("a", "b", "c"))
    plan, paths = trained(tmp_path, dataset=three)
    (run,) = plan.runs
    alone = written(plan, paths, run, "source")
    assert set(alone["split"]) == {"test"}
    # prediction sets ask for both, and a file of test samples alone does not serve them
    paths.predictions(run, "earlier").write_bytes((paths.root / "predictions.parquet").read_bytes())
    both = written(plan, paths, run, "source", val=True)
    pd.testing.assert_frame_equal(both[both["split"] == "test"], alone, check_exact=True)
    assert set(both.query("split == 'val'")["site"]) == set(INTERNAL)


def test_prediction_sets_of_many_classes_have_files_of_their_own(tmp_path: Path) -> None:
    """Those of two classes hold validation samples anyway."""

    def jobs(classes: str, **more: Any) -> list[str]:
        dataset = OwnImages(table=Path("images.csv"), size=8, classes=tuple(classes))
        plan = fake_study.plan(tmp_path, dataset=dataset, inferences=["source"], seeds=[0], **more)
        return [*plan.prediction_jobs.values()]

    sets = {"conformal": {"alpha": 0.1}}
    assert jobs("ab") == jobs("ab", **sets) == jobs("abc") == ["source"] * 2
    assert jobs("abc", **sets) == ["source-validation"] * 2


def test_a_site_with_too_few_validation_samples_is_left_out(
    trained_study: tuple[Plan, Paths], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, paths = trained_study
    (run,), probabilities = plan.runs, fedshift.jobs.predict.probabilities
    few = len(read_table(paths.partition(plan.runs[run].partition_id)).query("split == 'val' and site == 'north'"))

    def fails(model: Any, samples: Any, *rest: Any, **options: Any) -> Any:
        if len(samples) == few:
            raise UserError("test-time statistics", "one image has no spread")
        return probabilities(model, samples, *rest, **options)

    monkeypatch.setattr(fedshift.jobs.predict, "probabilities", fails)
    table = written(plan, paths, run, "source")
    assert set(table["split"]) == {"test"} and set(table["site"]) == {*INTERNAL, *EXTERNAL}
    assert "source: validation images of north are left out: one image has no spread" in capsys.readouterr().err
