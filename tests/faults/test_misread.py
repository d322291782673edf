"""Whatever is wrong with a file of a study, the commands that read it end well, or with one line and code 2.

FEDSHIFT_DAMAGE sets the number of kinds of damage to each file, and FEDSHIFT_DAMAGE_SEED which ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import misread
import pytest
from rotation import of_day

from fedshift.core.errors import UserError
from fedshift.io import text
from fedshift.io.paths import SUMMARISED, DataFiles, RunFiles, StudyFiles

NUMBER, SEED = int(os.environ.get("FEDSHIFT_DAMAGE", "2")), int(os.environ.get("FEDSHIFT_DAMAGE_SEED", "0"))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> misread.Campaign:
    return misread.Campaign(tmp_path_factory.mktemp("damage"))


def test_every_file_of_a_study_is_damaged(campaign: misread.Campaign) -> None:
    """Files that are only written, that no command of a study reads again, and folders are named here."""
    folder = Path("x")
    properties = [
        getattr(files, name)
        for files in (DataFiles(folder), RunFiles(folder), StudyFiles(folder))
        for name, value in vars(type(files)).items()
        if isinstance(value, property) and name not in ("checkpoint", "lock", "round_log", "figures")
    ]
    tables = [StudyFiles(folder).result(table.name) for table in SUMMARISED]
    every = {path.name for path in [*properties, *tables] if isinstance(path, Path)}
    # A study of masks alone has it: tests/datasets/test_own_masks.py damages it.
    every.remove(DataFiles(folder).masks.name)
    # A study of real sites alone has it: tests/sites/test_sums.py damages it.
    every.remove(RunFiles(folder).sums.name)
    assert every <= {path.name for path in campaign.files}


def test_damage_ends_in_a_line(campaign: misread.Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "files", dict(of_day(campaign.files.items(), 2)))
    figures = campaign.trials(NUMBER, SEED)
    assert figures.calls > 50
    assert figures.refused > 20
    assert not figures.faults, "\n".join(figures.faults)


def test_a_campaign_finds_an_error_that_escapes(campaign: misread.Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    """If readers do not turn errors into lines, the same damage is found."""

    def read(path: Path) -> object:
        return text.json.loads(path.read_bytes())

    monkeypatch.setattr("fedshift.jobs.predict.read_json", read)
    figures, rng = misread.Figures(), misread.np.random.default_rng(0)
    (spec,) = [path for path in campaign.files if path.name == "spec.json"]
    campaign.trial(spec, misread.noise, rng, figures)
    assert any("JSONDecodeError" in fault or "UnicodeDecodeError" in fault for fault in figures.faults)
    assert not any(isinstance(fault, UserError) for fault in figures.faults)
