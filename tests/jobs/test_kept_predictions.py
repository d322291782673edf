"""A further inference predicts only itself: what a run's tables hold already is kept, if it is still right."""

from __future__ import annotations

from pathlib import Path

import my_study
import pandas as pd
import pytest

from fedshift.inferences import Inference
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.io.checksums import record
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.jobs import predict as job
from fedshift.study.plan import Plan

SOURCE: dict[str, Inference] = {"source": Source()}
BOTH: dict[str, Inference] = {**SOURCE, "tsmobn": TsmoBN()}


class Watched:
    """A run that was predicted by `source` alone, and the inferences that later jobs make anew."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: Plan
        self.paths: Paths
        self.plan, self.paths = my_study.finished(root, seeds=[0], inferences=["source"])
        (self.run,) = self.plan.runs
        self.first = self.paths.predictions(self.run, "source")
        self.anew: list[str] = []
        real = job._made

        def made(run: object, folder: Path, inferences: dict[str, Inference], *rest: object) -> dict[str, pd.DataFrame]:
            self.anew += inferences
            return real(run, folder, inferences, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(job, "_made", made)

    def predict(self, inferences: dict[str, Inference], name: str) -> pd.DataFrame:
        out = self.paths.predictions(self.run, name)
        job.predict(self.paths.run(self.run), inferences, self.paths, out)
        record(out)
        return read_table(out)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.chdir(tmp_path)
    return Watched(tmp_path, monkeypatch)


def test_only_a_further_inference_is_predicted(watched: Watched) -> None:
    before = read_table(watched.first)
    both = watched.predict(BOTH, "both")
    assert watched.anew == ["tsmobn"]
    kept = both[both["inference"] == "source"].drop(columns="inference").reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before, check_exact=True)
    watched.anew.clear()
    alone = watched.predict({"tsmobn": BOTH["tsmobn"]}, "alone")
    assert watched.anew == [], "one of several is taken from their file"
    mine = both[both["inference"] == "tsmobn"].drop(columns="inference").reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, mine, check_exact=True)


def test_the_table_is_that_of_one_job_that_makes_all(watched: Watched) -> None:
    kept = watched.predict(BOTH, "both")
    for file in watched.paths.run_files(watched.run).every_prediction:
        file.unlink()
    pd.testing.assert_frame_equal(watched.predict(BOTH, "both"), kept, check_exact=True)
    assert watched.anew == ["tsmobn", "source", "tsmobn"]


@pytest.mark.parametrize(
    "change", ["another network", "other images", "other code", "damage", "another run", "unknown"]
)
def test_predictions_of_anything_else_are_made_anew(
    watched: Watched, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = read_table(watched.first)
    files = watched.paths.run_files(watched.run)
    if change == "another network":
        write_table(watched.first, table_with(table, network="0 0"))
    elif change == "other images":
        (data,) = watched.plan.data
        card = watched.paths.data_files(data).card
        card.write_text(card.read_text(encoding="utf-8") + "\n", encoding="utf-8")
        record(card)
    elif change == "other code":
        monkeypatch.setattr("fedshift.jobs.predict.predict_code", lambda *_: "other")
    elif change == "another run":
        write_table(watched.first, table_with(table, run="another"))
    elif change == "unknown":
        write_table(watched.first, table_with(table, origins={}))
    record(watched.first)
    if change == "damage":
        watched.first.write_bytes(watched.first.read_bytes()[:-20])
    assert files.every_prediction == [watched.first]
    watched.predict(BOTH, "both")
    assert watched.anew == ["source", "tsmobn"]


def table_with(table: pd.DataFrame, **attributes: object) -> pd.DataFrame:
    changed = table.copy()
    changed.attrs = {**table.attrs, **attributes}
    return changed


def test_a_file_of_test_images_alone_does_not_serve_prediction_sets(watched: Watched) -> None:
    table = read_table(watched.first)
    attributes = table.attrs
    table = table[table["split"] == "test"].reset_index(drop=True)
    table.attrs = attributes
    write_table(watched.first, table)
    record(watched.first)
    out = watched.paths.predictions(watched.run, "again")
    job.predict(watched.paths.run(watched.run), SOURCE, watched.paths, out)
    assert watched.anew == [], "other studies take it as it is"
    out.unlink()
    job.predict(watched.paths.run(watched.run), SOURCE, watched.paths, out, val=True)
    assert watched.anew == ["source"]
    assert set(read_table(out)["split"]) == {"test", "val"}
