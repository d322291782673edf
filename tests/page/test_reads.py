"""Counts of how often the files of a study are opened while its page is made."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from papers_study import beside_paper

from fedshift.analysis import study_results
from fedshift.page import page, summary

COUNTING: list[Counter[Path]] = []
"""Counters of the files that are opened while they are in this list: an audit hook cannot be removed."""


def _count(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and COUNTING and isinstance(arguments[0], str | bytes | Path):
        for counter in COUNTING:
            counter[Path(str(arguments[0]))] += 1


sys.addaudithook(_count)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[Path]]:
    counter: Counter[Path] = Counter()
    monkeypatch.setattr("pandas.read_parquet", _counted(counter))
    COUNTING.append(counter)
    yield counter
    COUNTING.remove(counter)


def _counted(counter: Counter[Path]):  # type: ignore[no-untyped-def]
    """Arrow opens files without telling Python."""
    import pandas as pd

    read = pd.read_parquet

    def counted(path, **options):  # type: ignore[no-untyped-def]
        counter[Path(path)] += 1
        return read(path, **options)

    return counted


def test_each_file_of_results_is_read_once_for_a_page(tmp_path: Path, opened: Counter[Path]) -> None:
    trend = {"claim": "c", "better": {"bn": "local"}, "than": {"bn": "aggregated"}}
    rows = "FedAvg,base,H4,61.5,10 FedBN,base,H4,20,1"
    plan, paths = beside_paper(tmp_path, rows, trends=[trend], figures=["convergence", "patches", "sites"])
    for name in plan.figures:
        study_results.draw(study_results.load(plan, paths), name)
    opened.clear()
    page.write(study_results.load(plan, paths))
    folder = paths.study(plan.name)
    names = ("scores", "summary", "effects", "comparisons", "comparison", "trends", "unseen", "subgroups")
    files = [folder / f"{name}.csv" for name in (*names, "operating_points", "controls", "calibration", "collapse")]
    files += [
        folder / "numbers.parquet",
        folder / "missing.json",
        *(folder / "figures" / f"{name}.svg" for name in plan.figures),
    ]
    files += [paths.run(run) / name for run in plan.runs for name in ("manifest.json", "rounds.parquet")]
    files += [paths.data_files(data).samples for data in plan.data]
    files += [paths.partition(partition) for partition in {run.partition_id for run in plan.runs.values()}]
    assert {path.relative_to(tmp_path): opened[path] for path in files} == {
        path.relative_to(tmp_path): 1 for path in files
    }


def test_a_figure_reads_each_file_once(tmp_path: Path, opened: Counter[Path]) -> None:
    plan, paths = beside_paper(tmp_path, figures=["sites"])
    opened.clear()
    study_results.draw(study_results.load(plan, paths), "sites")
    folder = paths.study(plan.name)
    names = ("numbers.parquet", "scores.csv", "summary.csv", "effects.csv", "comparisons.csv", "trends.csv")
    assert {name: opened[folder / name] for name in names} == {
        "numbers.parquet": 1,
        "scores.csv": 1,
        "summary.csv": 1,
        "effects.csv": 0,
        "comparisons.csv": 0,
        "trends.csv": 0,
    }


def test_samples_partitions_and_predictions_are_read_once_for_a_summary(tmp_path: Path, opened: Counter[Path]) -> None:
    plan, paths = beside_paper(tmp_path, figures=["decision_curve"])
    opened.clear()
    summary.summarise(study_results.load(plan, paths))
    files = [paths.data_files(data).samples for data in plan.data]
    files += [paths.partition(partition) for partition in {run.partition_id for run in plan.runs.values()}]
    files += [paths.predictions(*job) for job in plan.prediction_jobs.items()]
    assert len(files) == 2 + len(plan.runs)
    assert {path.relative_to(tmp_path): opened[path] for path in files} == {
        path.relative_to(tmp_path): 1 for path in files
    }
