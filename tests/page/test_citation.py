"""The citation of a page: what identifies the study, and BibTeX that a reader can paste."""

from __future__ import annotations

from pathlib import Path

from outline import Outline
from scored_study import summarised

from fedshift import __version__
from fedshift.analysis import study_results
from fedshift.page import page
from fedshift.page.downloads import citation
from fedshift.page.history import trained


def test_a_page_names_study_digest_version_date_and_commit(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, figures=[], title="Does it hold up at 5 % & more?", synthetic=False)
    loaded = study_results.load(plan, paths)
    cited = citation(loaded, trained(loaded))
    assert cited.text == (
        f"Does it hold up at 5 % & more? Study fake, {plan.view[:7]}. Page made with fedshift {__version__}, commit "
        "aaaaaaa, 2025-01-01."
    )
    assert cited.bibtex.startswith(f"@misc{{fake-{plan.view[:7]},\n")
    assert r"title = {{Does it hold up at 5 \% \& more?}}," in cited.bibtex
    assert "year = {2025}," in cited.bibtex
    assert cited.bibtex.count("{") - cited.bibtex.count(r"\{") == cited.bibtex.count("}") - cited.bibtex.count(r"\}")
    text = Outline(page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")).text
    assert cited.text in text and "Cite this page" in text


def test_invented_images_are_said_in_the_citation(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, figures=[])
    loaded = study_results.load(plan, paths)
    cited = citation(loaded, trained(loaded))
    assert "synthetic images, not a result" in cited.text and "synthetic images, not a result" in cited.bibtex
