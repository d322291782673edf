"""The first screen of a study that compares methods: words, ranks and picture, on answers counted by patient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import METHODS, Right, compared, predict
from outline import Outline

from fedshift.analysis.study_results import StudyResults
from fedshift.analysis.verdict import ranks
from fedshift.page import page
from fedshift.page.phrases import Nouns
from fedshift.page.screens import Methods
from fedshift.page.study_report import StudyReport
from fedshift.study.plan import Run

NOISE = np.random.default_rng(5).integers(-9, 10, (3, 40))
"""By training and patient: a condition with it cannot be told from one that is 1 of 20 better or worse."""
SETTINGS = {"few": ["a"], "many": ["a", "b"]}


def rightly(**counts: int) -> Right:
    """So many of 20 answers of each patient are right; those of `scaffold` vary."""

    def right(run: Run, site: str, patient: int) -> int:
        noise = int(NOISE[run.seed, patient]) if run.algorithm.name == "scaffold" else 0
        return counts[run.algorithm.name] + noise

    return right


def study(root: Path, monkeypatch: pytest.MonkeyPatch, right: Right, methods: int = 3, **changes: Any) -> StudyResults:
    predict(monkeypatch, right, 40, 20)
    return compared(root, METHODS[:methods], **{"external": (), **changes})


def methods_of(found: StudyResults) -> Methods:
    made = Methods.of(StudyReport(found))
    assert made is not None
    return made


def test_a_rank_is_behind_the_surely_better_and_before_the_surely_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg is 2 of 20 better than FedProx for every patient; SCAFFOLD lies between them, and nobody knows where."""
    found = study(tmp_path, monkeypatch, rightly(fedavg=11, scaffold=10, fedprox=9))
    (group,) = ranks(found.findings)
    assert {rank.entry.condition.run.algorithm.name: (rank.first, rank.last) for rank in group} == {
        "fedavg": (1, 2),
        "scaffold": (1, 3),
        "fedprox": (2, 3),
    }
    assert [rank.level.mean for rank in group] == sorted((rank.level.mean for rank in group), reverse=True)
    screen = methods_of(found).screen
    assert (screen.word, screen.tone) == ("No single best", "plain")
    assert screen.sentence.endswith("2 of 3 conditions may be the best.")


def test_one_that_is_surely_better_than_all_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch, rightly(fedavg=8, fedprox=14), 2)
    assert [(rank.first, rank.last) for rank in ranks(found.findings)[0]] == [(1, 1), (2, 2)]
    screen = methods_of(found).screen
    assert screen.word == "One is best"
    percent = f"{100 * 14 / 20:.1f}\N{NO-BREAK SPACE}%"
    assert screen.sentence == (
        f"The best mean is that of FedProx, aggregated BN ({percent}), surely better than the others."
    )
    assert screen.step == ""
    text = Outline(page.write(found).read_text()).text
    assert "One is best" in text
    assert "No hospital outside" not in text


def test_the_declared_comparison_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    primary = {"condition": {"algorithm": "fedprox"}, "against": {"algorithm": "fedavg"}}
    found = study(tmp_path, monkeypatch, rightly(fedavg=8, fedprox=14, scaffold=19), primary=primary)
    screen = methods_of(found).screen
    assert screen.word == "A difference is shown"
    assert screen.sentence.startswith("FedProx, aggregated BN is better than FedAvg, aggregated BN at ")
    assert "by 30.0 points" in screen.sentence
    alike = study(tmp_path / "alike", monkeypatch, rightly(fedavg=10, fedprox=10, scaffold=9), primary=primary)
    assert methods_of(alike).screen.word == "No difference is shown"


def test_one_training_ranks_nothing_and_names_the_setting_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study(tmp_path, monkeypatch, rightly(fedavg=2, fedprox=18), 2, seeds=[0])
    assert [(rank.first, rank.last) for rank in ranks(found.findings)[0]] == [(1, 2), (1, 2)]
    screen = methods_of(found).screen
    assert (screen.word, screen.step) == ("Too few trainings to tell", "`seeds: [0, 1, 2]`")


@pytest.mark.painted
def test_settings_with_other_sites_are_ranked_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = {"train": 0.4, "val": 0.1, "test": 0.5}
    parts = [{"internal": sites, "held_out": name, "split": split} for name, sites in SETTINGS.items()]
    made = methods_of(study(tmp_path, monkeypatch, rightly(fedavg=8, fedprox=14), 2, partition=parts))
    assert [len(group) for group in made.groups] == [2, 2]
    assert made.screen.sentence.count("Setting ") == 2
    shown = made.picture("Study x.", 6).svg("x")
    assert shown.count(">few<") == shown.count(">many<") == 1
    assert shown.count(">1<") == shown.count(">2<") == 2, "the ranks of two conditions in two settings"


def test_hospitals_outside_with_patients_keep_their_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch, rightly(fedavg=8, fedprox=14), 2, external=("x",))
    report = StudyReport(found)
    assert Methods.of(report) is None
    report.nouns = Nouns(unit="image", known=False)
    assert Methods.of(report) is not None, "data without patients are of no hospital"
