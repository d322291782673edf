"""What the protocol of a page says of runs that real sites have trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scored_study import results_of

from fedshift.hospitals.hospital import SENTENCE
from fedshift.jobs.run_files import REVEALS, STAYS, WITH_EACH_ANSWER
from fedshift.page.protocol import between_sites
from fedshift.page.study_report import StudyReport


def report(root: Path, **manifests: dict[str, Any]) -> StudyReport:
    """A study whose runs have these manifests, by their places among all runs: `run0`, `run1`."""
    made = StudyReport(results_of(root))
    for number, run in enumerate(made.runs):
        run.manifest.update(manifests.get(f"run{number}", {}))
    return made


def test_runs_of_one_place_say_nothing(tmp_path: Path) -> None:
    assert between_sites(report(tmp_path)) == []


def test_what_left_is_what_the_sites_were_told(tmp_path: Path) -> None:
    served = {"sites": {"north": {}, "south": {}}, "missing": []}
    made = report(tmp_path, run0=served)
    ((item, (trained, left, missing)),) = between_sites(made)
    assert item == "Real sites"
    words = "1 of 6 runs were trained between 2 real sites, north and south, which kept their images."
    assert trained == words
    for said in (WITH_EACH_ANSWER, "label, split, what is predicted of each scored image", STAYS, REVEALS):
        assert said in left
    assert STAYS in SENTENCE and REVEALS in SENTENCE, "the sites were told the same"
    assert missing == "All sites answered in every round."


def test_missing_answers_are_counted_by_site(tmp_path: Path) -> None:
    lost = [{"round": 1, "site": "south", "kind": "train", "reason": "x"}] * 2
    lost.append({"round": 2, "site": "north", "kind": "train", "reason": "y"})
    served = {"sites": {"north": {}, "south": {}}, "missing": lost}
    made = report(tmp_path, **{f"run{k}": served | ({} if k else {"missing": []}) for k in range(6)})
    ((_, (trained, _, missing)),) = between_sites(made)
    assert trained.startswith("All runs were trained between 2 real sites")
    words = "15 answers of sites are missing: south 10 and north 5. The manifests of the runs say why."
    assert missing == words
