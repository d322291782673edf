"""The tutorials of the site work are carried out from top to bottom in empty folders: one a day, or all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rotation import of_day
from tutorial import ROOT, Reader, steps

from fedshift.cli.parser import parser

PAGES = {
    "first-study": ("first", ["reports/stains.html", "results/studies/stains/scores.csv"]),
    "own-hospital": ("clinics", ["reports/clinics.html", "predicted/predictions.csv", "predicted/page.html"]),
    "own-scans": ("lungs", ["images.csv", "pseudonyms.key", "reports/lungs.html"]),
    "own-method": ("methods", ["reports/careful.html", "results/studies/careful/comparisons.csv"]),
}
"""The folder of the project that a tutorial makes, and files that a reader finds there at the end."""
OVER_FLOWER = {"two-hospitals"}
"""Tutorials that tests/flower carries out, since they need Flower."""
NEEDS = {"new", "run", "test-plugin"}
COMMANDS = next(action.choices for action in parser()._actions if isinstance(action.choices, dict))


def test_every_tutorial_is_carried_out() -> None:
    assert {page.stem for page in (ROOT / "docs/tutorials").glob("*.md")} == PAGES.keys() | OVER_FLOWER


@pytest.mark.slow
@pytest.mark.skipif(not COMMANDS.keys() >= NEEDS, reason=f"fedshift has no command {sorted(NEEDS - COMMANDS.keys())}")
@pytest.mark.parametrize("name", of_day(PAGES, 4))
def test_a_tutorial_works_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    page = ROOT / "docs/tutorials" / f"{name}.md"
    assert len(list(steps(page))) >= 5
    reader = Reader(tmp_path / "empty")
    seconds = reader.follow(page)
    print(f"{name}: {seconds:.0f} seconds of CPU")
    project, files = PAGES[name]
    assert reader.folder == tmp_path / "empty" / project
    for file in files:
        assert (reader.folder / file).stat().st_size > 0, file
