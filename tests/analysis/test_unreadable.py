"""A file of results that is there and cannot be read is an error; one that is absent is left out."""

from __future__ import annotations

import re
from pathlib import Path

import fake_study
import pandas as pd
import pytest

from fedshift.analysis import controls, operating_point, predictions, study_results
from fedshift.core.errors import UserError
from fedshift.io.paths import RESULT_TABLES, Paths
from fedshift.io.tables import read_table, write_table

KEY = RESULT_TABLES["operating_points"].keys


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PAR1"])
@pytest.mark.parametrize(("name", "table"), [("rounds.parquet", "rounds"), ("manifest.json", "manifests")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, table: str, content: bytes) -> None:
    plan, paths = fake_study.build(tmp_path)
    file = paths.run(next(iter(plan.runs))) / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{re.escape(str(file))}: .*not a readable"):
        getattr(study_results.load(plan, paths), table)


def test_a_manifest_is_a_mapping(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    paths.run_files(next(iter(plan.runs))).manifest.write_text("[]")
    with pytest.raises(UserError, match=r"manifest\.json: is not a manifest of a run"):
        study_results.load(plan, paths).manifests  # noqa: B018 - it is read when it is first asked for


def test_operating_points_without_the_rows_of_all_runs_are_named(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    file = paths.study_files(plan.name).result("operating_points")
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = operating_point.COLUMNS
    file.write_text(",".join(columns) + "\n" + ",".join("a" if c in KEY else "1" for c in columns) + "\n")
    with pytest.raises(UserError, match=rf"{re.escape(str(file))}: .*not a readable"):
        study_results.load(plan, paths).operating_points  # noqa: B018 - it is read when it is first asked for


def of_control(root: Path) -> None:
    """Read the predictions of the control of partition `part`."""
    plan = fake_study.plan(root)
    (run, *_) = plan.runs.values()
    controls._of_control(predictions.Predictions(plan, Paths(root)), run, "part")


def test_predictions_of_a_control_without_a_column_are_named(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    write_table(paths.control("part"), pd.DataFrame({"site": ["A"], "role": ["internal"], "label": [1]}))
    with pytest.raises(UserError, match=r"part\.parquet: not a readable table file: .*sample"):
        of_control(tmp_path)


def test_predictions_of_a_control_with_text_for_numbers_are_named(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    row = {"sample": ["a"], "site": ["A"], "role": ["internal"], "label": [1], "p0": ["text"], "p1": [0.5]}
    write_table(paths.control("part"), pd.DataFrame(row))
    with pytest.raises(UserError, match=r"part\.parquet: the column 'p0' must hold only numbers"):
        of_control(tmp_path)


@pytest.mark.parametrize(("column", "value"), [("site", "centre3"), ("role", "external")])
def test_predictions_at_other_places_than_in_the_partition_are_not_used(
    tmp_path: Path, column: str, value: str
) -> None:
    plan, paths = fake_study.build(tmp_path)
    run, job = next(iter(plan.prediction_jobs.items()))
    file = paths.predictions(run, job)
    table = read_table(file)
    write_table(file, table.assign(**{column: value}))
    with pytest.raises(predictions.Missing, match=f"a sample has another {column} than in the partition"):
        predictions.Predictions(plan, paths).read(plan.runs[run], plan.sweeps[job][0])


def test_what_is_absent_is_left_out(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    lost, *others = plan.runs
    paths.run_files(lost).rounds.unlink()
    paths.run_files(lost).manifest.unlink()
    loaded = study_results.load(plan, paths)
    assert set(loaded.rounds["run"]) == set(others)
    assert loaded.manifests[lost] == {}
    assert all(loaded.manifests[run] for run in others)
