"""Claims of a page, and cases where the numbers allow no claim."""

from __future__ import annotations

import math
from pathlib import Path

import fake_study
import numpy as np
import pandas as pd
import pytest
from scored_study import results_of

from fedshift.analysis.findings import Findings
from fedshift.core import registry
from fedshift.page import answer
from fedshift.study import calls

NAN = math.nan


def findings(root: Path, **changes: object) -> Findings:
    return results_of(root, **changes).findings  # type: ignore[arg-type]


def test_without_patients_enough_the_answer_says_that_there_is_no_interval(tmp_path: Path) -> None:
    """Two test patients at each internal site: no interval of the gap, and the answer does not pass over it."""
    found = findings(tmp_path)
    assert math.isnan(found.gap(found.conditions[0], "source").low)
    assert "no interval can be given (too few test patients at centre0 and centre3)" in answer.answer(found).lead


def test_balanced_accuracy_has_an_interval_and_is_the_mean_of_recalls() -> None:
    label = np.array([0, 0, 0, 1])
    probability = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7]])
    metric = registry.build("metric", "balanced_accuracy")
    assert metric.value(label, probability) == pytest.approx((2 / 3 + 1) / 2)
    assert metric.has_interval


def test_a_site_with_one_class_counts_in_no_mean(tmp_path: Path) -> None:
    def one_class(samples: pd.DataFrame) -> pd.DataFrame:
        return samples.assign(label=samples["label"].where(samples["site"] != "centre1", 1))

    found = findings(tmp_path, headline="balanced_accuracy", change=one_class)
    group = found.conditions[0]
    assert not found.value(group, "external", "centre1", "source").known
    assert found.worst(group, "source") == fake_study.EVIL
    assert found.left_out("external") == ["centre1"]
    both = found.effect("level", group, "source", "external").mean
    assert both == pytest.approx(found.value(group, "external", fake_study.EVIL, "source").mean)
    assert "1 of 2 external sites" in answer.answer(found).lead


def test_inferences_that_differ_in_batch_size_alone_are_told_apart(tmp_path: Path) -> None:
    found = findings(tmp_path, inferences=["source", {"name": "source", "batch_size": 64}])
    assert len({found.name(key) for key in found.keys}) == 2


def test_the_command_to_repeat_works_from_anywhere(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    assert calls.snakemake(plan, paths) == "fedshift run fake"
    plan.path = tmp_path / "my studies" / "fake.yaml"
    assert f"'{plan.path}'" in calls.snakemake(plan, paths)


def test_partitions_that_leave_out_nothing_are_told_one_by_one(tmp_path: Path) -> None:
    """Fewer clients and more are what is compared: their mean says nothing."""
    parts = [{"internal": ["centre0"], "held_out": "one"}, {"internal": ["centre0", "centre3"], "held_out": "two"}]
    found = findings(tmp_path, partition=parts)
    told = answer.answer(found)
    assert not found.averaged
    assert [text.partition(":")[0].rpartition("held out ")[2] for text in (told.lead, *told.others)] == [
        "one",
        "one",
        "two",
        "two",
    ]


@pytest.mark.parametrize("complementary", [True, False])
def test_partitions_of_the_same_clients_are_told_one_by_one(tmp_path: Path, complementary: bool) -> None:
    """A mean over iid and non-iid data says nothing; one over hospitals left out in turn does."""
    clients = [["centre0"], ["centre3"]] if complementary else [["centre0"], ["centre0"]]
    parts = [
        {"internal": internal, "external": ["centre1"], "held_out": held, "seed": n}
        for n, (internal, held) in enumerate(zip(clients, ("iid", "noniid"), strict=True))
    ]
    found = findings(tmp_path, partition=parts)
    told = answer.answer(found)
    both = [told.lead, *told.others]
    assert found.averaged is complementary
    named = [line.split(":")[0].rpartition("held out ")[2] for line in both]
    assert named == (["FedAvg, aggregated BN", "FedAvg, local BN"] if complementary else ["iid"] * 2 + ["noniid"] * 2)
