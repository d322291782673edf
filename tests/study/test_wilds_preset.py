"""The preset for WILDS' official split of Camelyon17."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.datasets.camelyon17 import Camelyon17
from fedshift.study.run import Data

FILE = Path(__file__).parents[2] / "config" / "studies" / "wilds-camelyon17.yaml"


def test_the_preset_keeps_the_rules() -> None:
    plan = study.load(FILE, "paper")
    assert len({run.seed for run in plan.runs.values()}) == 10
    for run in plan.runs.values():
        assert (*run.partition.internal,) == ("centre0", "centre3", "centre4")
        assert (run.partition.external, run.partition.split.train) == (("centre2",), 1)
        assert (run.training.select_at, run.training.select_by) == (("centre1",), "accuracy")
        assert run.data.dataset.model_dump()["id_val"] is False
    assert "pooled" in {run.algorithm.name for run in plan.runs.values()}


@pytest.mark.parametrize("taken", ["centre2", "centre0"])
def test_a_site_that_takes_part_cannot_choose_the_round(tmp_path: Path, taken: str) -> None:
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    content["training"]["select_at"] = [taken]
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(UserError, match=rf"training.select_at: '{taken}' trains or tests in the partition"):
        study.load(tmp_path / "other.yaml", "paper")


def test_the_ids_of_data_are_those_of_before_unless_patches_are_left_out() -> None:
    assert "id_val" not in Camelyon17().identity()
    whole, part = (Data(dataset=Camelyon17(id_val=value), synthetic=False) for value in (True, False))
    assert whole.raw == part.raw
    assert whole.id != part.id
