"""The mean over clients' networks and the union of sites, in trends and beside published values, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_study import EVIL
from papers_study import compared, read

from fedshift.core.errors import UserError

NETWORKS = {
    "runs": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedbn", "inferences": ["source", {"name": "source", "client": ["centre0", "centre3"]}]},
    ],
    "inferences": ["source"],
}
MEAN = {"algorithm": "fedbn", "inference": {"name": "source", "client": "mean"}}


def by_network(run, inference, site, role):  # type: ignore[no-untyped-def]
    """FedAvg 0.8. FedBN's own networks 0.9; that of centre0 0.6 everywhere, that of centre3 1.0 at EVIL, else 0.8."""
    if run.bn == "aggregated":
        return 0.8
    if inference == "source@centre3":
        return 1.0 if site == EVIL else 0.8
    return 0.6 if inference == "source@centre0" else 0.9


def fewer(samples: pd.DataFrame) -> pd.DataFrame:
    """One patient of six stays at EVIL."""
    return samples[(samples["site"] != EVIL) | (samples["patient"] == f"{EVIL}/0")]


def row(root: Path, trend: dict[str, Any], **changes: Any) -> dict[str, Any]:
    sides = {"claim": "FedAvg is above", "better": {"algorithm": "fedavg"}, "than": MEAN}
    settings = NETWORKS | {"share_right": by_network, "trends": [sides | trend]} | changes
    plan, paths = compared(root, **settings)
    (found,) = read(plan, paths, "trends").to_dict("records")
    return {str(k): v for k, v in found.items()}


def test_the_mean_over_clients_networks_is_of_scores(tmp_path: Path) -> None:
    """At centre1: 0.8 - (0.6 + 0.8) / 2 = 0.1. A mean of probabilities would have another score."""
    found = row(tmp_path, {"at": ["centre1"]})
    assert (found["held"], found["mean_difference"]) == ("yes", pytest.approx(0.1))
    assert len(found["than_ids"].split()) == 2, "the ids of both networks"


@pytest.mark.parametrize(("network", "expected"), [("centre0", 0.6), ("mean", (0.6 + (60 * 0.8 + 10 * 1.0) / 70) / 2)])
def test_the_union_counts_each_image_once(tmp_path: Path, network: str, expected: float) -> None:
    """There are 60 and 10 external samples: the union is the mean over images, not over sites."""
    than = {"algorithm": "fedbn", "inference": {"name": "source", "client": network}, "role": "external"}
    better = {"algorithm": "fedavg", "role": "external"}
    found = row(tmp_path, {"at": ["union"], "better": better, "than": than}, change=fewer)
    assert found["mean_difference"] == pytest.approx(0.8 - expected)
    assert found["sites"] == 1


def test_a_mean_without_all_networks_is_not_run(tmp_path: Path) -> None:
    runs = [NETWORKS["runs"][0], {"algorithm": "fedbn", "inferences": [{"name": "source", "client": "centre0"}]}]
    with pytest.raises(UserError, match="matches nothing that the study runs"):
        row(tmp_path, {"at": "external"}, runs=runs)
    assert row(tmp_path, {"at": "external"}, runs=runs, scale="mini")["held"] == "not run"


def test_what_is_recorded_in_training_has_no_union(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step_loss is recorded at single sites"):
        row(tmp_path, {"at": ["union"], "of": "step_loss", "than": {"algorithm": "fedbn"}})


def test_a_printed_mean_over_networks_stands_beside_ours(tmp_path: Path) -> None:
    words = {"FedBN": MEAN, "all": {"site": "union", "role": "external"}}
    published = {"tables": "fake-table1", "words": words}
    rows = "FedBN,,centre1,70,1 FedBN,,all,76,1"
    plan, paths = compared(tmp_path, rows, **NETWORKS, share_right=by_network, published=published)
    found = read(plan, paths, "comparison")
    assert list(found["mean"]) == pytest.approx([0.7, 0.75]), "(0.6 + 0.8) / 2, and (0.6 + 0.9) / 2 over both sites"
    assert set(found["inference"]) == {"source(client=mean)"}
    assert list(found["difference"]) == pytest.approx([0.0, -0.01])
