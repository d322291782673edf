"""A finished small study, in a folder that tests of the Python interface work in."""

from __future__ import annotations

from pathlib import Path

import my_study
import pytest


@pytest.fixture(scope="session")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        my_study.finished(root)
    return root


@pytest.fixture
def here(finished_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, as the current folder."""
    monkeypatch.chdir(finished_project)
    return finished_project
