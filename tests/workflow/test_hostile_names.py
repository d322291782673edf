"""Names that would be commands, paths or markup elsewhere: in rules and on the disk of a whole study they are text."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tiny_project import Project

NAME = "étude 1.b+c - ü"
SITES = ("$(touch pwned); touch pwned", "../../{run}", "<script>alert(1)</script>\n'\"")
CLASSES = ["benign; touch pwned", "<img src=x onerror=alert(1)>"]


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A study of such names, run as people run it."""
    project = Project.create(tmp_path_factory.mktemp("hostile") / "project")
    rng, rows = np.random.default_rng(0), []
    for k, site in enumerate(SITES):
        for i in range(24):
            pixels = rng.integers(0, 156, (16, 16, 3)) + 100 * (i % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(project.root / "own images" / f"{k}-{i}.png")
            row = {"path": f"{k}-{i}.png", "label": CLASSES[i % 2], "site": site, "patient": f"{site}{i // 4}"}
            rows.append(row)
    pd.DataFrame(rows).to_csv(project.root / "own images" / "samples.csv", index=False)
    changes = {
        "title": CLASSES[1],
        "dataset": {"name": "own_images", "table": "../../own images/samples.csv", "size": 16, "classes": CLASSES},
        "partition": {"internal": list(SITES[:2]), "external": [SITES[2]], "held_out": SITES[0]},
        "runs": [{"algorithm": "fedavg", "bn": "local"}],
        "seeds": [0],
    }
    path = project.study(NAME, **changes).relative_to(project.root)
    done = project.build(str(path))
    assert done.returncode == 0, done.stderr
    return project


@pytest.mark.slow
def test_no_name_is_a_command_or_a_path(finished_project: Project) -> None:
    found = finished_project.files()
    assert not [name for name in found if Path(name).name == "pwned"]
    plain = {name.replace(NAME, "STUDY") for name in found if name.startswith(("results", "reports", "resources"))}
    assert {"reports/STUDY.html", "results/studies/STUDY/scores.csv"} <= plain
    odd = [name for name in plain if not re.fullmatch(r"[A-Za-z0-9._/-]+", name)]
    assert odd == [], "sites, classes and patients name no file"


@pytest.mark.slow
def test_names_are_text_on_the_page(finished_project: Project) -> None:
    html = finished_project.root.joinpath("reports", f"{NAME}.html").read_text(encoding="utf-8")
    index = finished_project.root.joinpath("reports", "index.html").read_text(encoding="utf-8")
    for page in (html, index):
        assert "<script" not in page
        assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
