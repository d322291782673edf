"""External images that a client trained on under another corruption are scored apart from those that no client used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pandas as pd
import pytest

from fedshift.analysis import score, study_results, unseen
from fedshift.analysis.numbers import Names
from fedshift.analysis.predictions import Predictions
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.page import page, summary
from fedshift.study.plan import Plan


def guises(table: pd.DataFrame) -> pd.DataFrame:
    """Every site shows the same images."""
    return table.assign(base=table["sample"].str.split("/").str[-2:].str.join("/"), patient=None)


def made(root: Path, change: Any = guises, **changes: Any) -> tuple[Plan, Paths, int, int]:
    """At external sites, predictions are right for all images trained on, and for the other images with seed 0 alone.

    Returns also how many of an external site's images are trained on, and how many are not.
    """
    plan, paths = fake_study.build(root, change=change, seeds=[0, 1], figures=[], **changes)
    assert len(plan.data) == 1
    samples = read_table(paths.data(next(iter(plan.data))) / "samples.parquet").set_index("sample")
    counts = 0, 0
    for name, run in plan.runs.items():
        assigned = read_table(paths.partition(run.partition_id))
        base = samples["base"] if "base" in samples else samples.index.to_series()
        train = {base[sample] for sample in assigned.loc[assigned["split"] == "train", "sample"]}
        file = fake_study.predictions_of(plan, paths, name)
        table = read_table(file)
        seen = table["sample"].map(base).isin(train)
        right = seen | (run.seed == 0) | (table["role"] == "internal")
        table["p1"] = (right == (table["label"] == 1)).map({True: 0.8, False: 0.2})
        table["p0"] = 1 - table["p1"]
        write_table(file, table)
        outside = (table["role"] == "external") & (table["inference"] == "source")
        counts = int((seen & outside).sum()), int((~seen & outside).sum())
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    return plan, paths, *counts


def test_what_was_trained_on_is_told_apart(tmp_path: Path) -> None:
    plan, paths, seen, new = made(tmp_path)
    found = score.read_table(paths.study("fake") / "unseen.csv")
    assert list(found) == unseen.COLUMNS
    assert len(found) == 2 * 2 * 2, "BN policies, inferences, kinds of image"
    known, other = found[found["trained_on"]], found[~found["trained_on"]]
    assert (known["mean"].tolist(), known["n"].unique().tolist()) == ([1.0] * 4, [seen])
    assert other["mean"].tolist() == pytest.approx([0.5] * 4), "all and none, over two seeds"
    assert other["std"].tolist() == pytest.approx([0.5**0.5] * 4)
    assert other["n"].unique().tolist() == [new]
    assert found["seeds"].unique().tolist() == [2]
    assert (seen, new) == (2 * 42, 2 * 18)
    table = unseen.shown(study_results.load(plan, paths).findings, found)
    assert table is not None
    told = tuple(cell.replace("\N{NO-BREAK SPACE}", " ") for cell in table.rows[0])
    assert told == ("FedAvg, aggregated BN", "Source", "100.0 ± 0.0", "50.0 ± 70.7")
    assert "Not trained on" in page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")


def nothing_shared(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(base=table["sample"], patient=None)


@pytest.mark.parametrize("change", [None, nothing_shared], ids=["no guises", "nothing shared"])
def test_where_no_image_has_another_guise_there_is_nothing_to_tell(tmp_path: Path, change: Any) -> None:
    plan, paths, *_ = made(tmp_path, change)
    found = score.read_table(paths.study("fake") / "unseen.csv")
    assert found.empty
    assert list(found) == unseen.COLUMNS
    assert unseen.shown(study_results.load(plan, paths).findings, found) is None
    assert "Not trained on" not in page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")


def test_a_run_that_is_not_there_counts_as_a_seed_less(tmp_path: Path) -> None:
    plan, paths, *_ = made(tmp_path)
    lost = next(name for name, run in plan.runs.items() if run.seed == 1 and run.bn == "local")
    fake_study.predictions_of(plan, paths, lost).unlink()
    found = unseen.table(Names(plan), Predictions(plan, paths), study_results.load(plan, paths).samples)
    assert found[found["bn"] == "local"]["seeds"].tolist() == [1] * 4
    assert found[found["bn"] == "aggregated"]["seeds"].tolist() == [2] * 4
