"""A short campaign of faults finds nothing, and would find what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import campaign
import pytest

from fedshift.io.tensors import write_tensors


def test_a_few_faults(tmp_path: Path) -> None:
    figures = campaign.Campaign(tmp_path, seed=1).trials(10)
    assert sum(figures.faults.values()) >= 10
    assert not figures.found, str(figures)


def test_a_full_disk_at_any_disk_event_of_a_training_is_one_line(tmp_path: Path) -> None:
    project = campaign.Campaign(tmp_path)
    for number in range(1, 12):  # the lock, the log and the first checkpoints
        project.clear("train")
        code = project.call("train", campaign.Fault("no space", number))
        said = (tmp_path / "said").read_text().splitlines()
        assert code in (0, 2), said  # what is only removed may be left
        assert code == 0 or "no space left on the disk" in said[-1]


def test_a_campaign_finds_what_is_not_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a model is written in place, a kill in the middle leaves a part of it under its name."""
    project = campaign.Campaign(tmp_path)

    def write(path: Path, *given: Any) -> None:
        real(path, *given)
        if path.name == "model.safetensors":
            path.write_bytes(path.read_bytes()[:100])
            campaign.os.kill(campaign.os.getpid(), campaign.signal.SIGKILL)

    real = write_tensors
    monkeypatch.setattr(campaign.train, "write_tensors", write)
    monkeypatch.setattr(campaign, "COMMANDS", ("train",))
    monkeypatch.setattr(campaign, "FAULTS", ("none",))
    figures = campaign.Figures()
    project.trial(figures)
    assert figures.partial
    assert figures.clean_ups
