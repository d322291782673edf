"""What preparation noted on the data stands on the page, among what is to be read with care."""

from __future__ import annotations

from pathlib import Path

import fake_study
from fake_study import EVIL
from outline import Outline

from fedshift.analysis import score
from fedshift.analysis.study_results import load
from fedshift.io.text import read_json, write_json
from fedshift.page import page, summary

NOTE = f"3 images (2 at centre0, 1 at {EVIL}) could not be read and are left out."


def test_images_left_out_are_counted_on_the_page(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, figures=[])
    (data,) = plan.data
    card = paths.data_files(data).card
    write_json(card, read_json(card) | {"notes": [NOTE]})
    score.score(plan, paths)
    summary.summarise(load(plan, paths))
    html = page.write(load(plan, paths)).read_text(encoding="utf-8")
    assert NOTE in Outline(html).text
    assert NOTE not in html, "names of sites are escaped"
    assert html.index("could not be read and are left out") < html.index('id="sites"')
