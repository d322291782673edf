"""The study that `fedshift new` writes is run as it is declared, with images of one's own, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedshift.cli import parser
from fedshift.core.errors import UserError
from fedshift.study import plan as study


def test_own_images_have_no_smaller_scale(tmp_path: Path) -> None:
    assert parser.main(["new", str(tmp_path / "project")]) == 0
    path = tmp_path / "project" / "config" / "studies" / "my-study.yaml"
    declared = yaml.safe_load(path.read_text(encoding="utf-8"))
    own = {"name": "own_images", "table": "../../images.csv", "classes": ["benign", "tumour"]}
    path.write_text(yaml.safe_dump(declared | {"dataset": own}), encoding="utf-8")
    plans = [study.load(path, scale) for scale in ("mini", "paper")]
    assert [list(plan.runs) for plan in plans] == [list(plans[0].runs)] * 2
    assert not plans[0].scaled
    assert plans[0].study.model.name == "densenet_small"
    assert plans[0].study.seeds == (0, 1, 2)


def test_a_title_with_a_colon_gets_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("title: Base: no trap\n", encoding="utf-8")
    with pytest.raises(UserError, match='a colon and a space needs quotes: title: "Base: no trap"'):
        study.load(path, "mini")


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, ["title", "question"]),
        ({"title": "Is it safe?"}, ["question"]),
        ({"question": ""}, ["title"]),
        ({"title": "Is it safe?", "question": "Is it?"}, []),
    ],
)
def test_words_of_the_template_are_told_as_long_as_they_stay(
    changed: dict[str, str], kept: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parser.main(["new", str(tmp_path / "project")]) == 0
    path = tmp_path / "project" / "config" / "studies" / "my-study.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")
    capsys.readouterr()
    assert parser.main(["check", str(path)]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "as `fedshift new` wrote it" in line]
    assert [line.split(": ")[1] for line in said] == ([" and ".join(kept)] if kept else [])
