"""The methods section names optimiser, loss, initial weights and the rules of the benchmark."""

from __future__ import annotations

from typing import Any

import fake_study
import pytest
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.datasets.camelyon17 import Camelyon17
from fedshift.io.paths import Paths
from fedshift.page.protocol import protocol, wilds_rules
from fedshift.study.plan import Plan
from fedshift.tasks import Classification, Segmentation


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    plan, paths = summarised(tmp_path_factory.mktemp("protocol"), seeds=[0], figures=[])
    return plan, paths


def lines(built: tuple[Plan, Paths], **changes: Any) -> dict[str, list[str]]:
    """The methods section of the built study, had it been declared with these changes."""
    findings = study_results.load(*built).findings
    findings.plan = Plan("fake", built[0].path, "paper", fake_study.study(seeds=[0], figures=[], **changes))
    return dict(protocol(findings))


def test_the_optimiser_has_its_settings(built: tuple[Plan, Paths]) -> None:
    training = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0001, "schedule": "cosine"}
    (line,) = lines(built, training=training)["Optimiser"]
    assert (
        "(SGD) at each client, learning rate 0.05 (cosine over rounds), momentum 0.9 and weight decay 0.0001;" in line
    )
    assert "no momentum and no weight decay;" in lines(built)["Optimiser"][0]
    (line,) = lines(built, training={"optimiser": "adamw", "lr": 0.001})["Optimiser"]
    assert line.startswith("AdamW at each client, learning rate 0.001 (constant over rounds), betas 0.9 and 0.999 and")
    assert "beta" not in lines(built)["Training"][0]


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ({"algorithm": "fedavg"}, ["unweighted."]),
        ({"algorithm": "fedavg", "bn": "local"}, ["unweighted."]),
        ({"algorithm": "fedprox"}, ["; FedProx changes the loss or its gradient."]),
        ({"algorithm": "fedavg", "addon": "jigen"}, ["; JiGen changes the loss or its gradient."]),
        ({"algorithm": ["fedavg", "moon"]}, ["unweighted.", "; MOON changes the loss or its gradient."]),
    ],
)
def test_the_loss_names_who_changes_it(built: tuple[Plan, Paths], runs: dict[str, Any], expected: list[str]) -> None:
    told = lines(built, runs=[runs])["Loss"]
    assert [line[-len(end) :].casefold() for line, end in zip(told, expected, strict=True)] == [
        end.casefold() for end in expected
    ]


def test_the_loss_is_that_of_the_task(built: tuple[Plan, Paths], monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(built)["Loss"][0].startswith("Cross-entropy, mean over the images")
    monkeypatch.setattr(Classification, "loss_in_words", Segmentation().loss_in_words)
    assert lines(built)["Loss"][0].startswith("Soft Dice and cross-entropy of the pixels, mean over the images")
    assert Segmentation(loss="dice").loss_in_words == "Soft Dice"
    assert Segmentation(loss="cross_entropy").loss_in_words == "Cross-entropy of the pixels"


def test_the_loss_says_how_classes_are_weighed(built: tuple[Plan, Paths]) -> None:
    (line,) = lines(built, training={"class_weights": [1, 2.5]})["Loss"]
    assert line.endswith("each with the weight of its class (1, 2.5).")
    (line,) = lines(built, training={"class_weights": "balanced"})["Loss"]
    assert "(all training images of the internal sites, divided by" in line


def test_initial_weights_have_an_origin(built: tuple[Plan, Paths]) -> None:
    assert lines(built)["Initial weights"][0].startswith("Drawn at random from the run's seed, not pretrained;")
    (line,) = lines(built, model={"name": "alexnet_bn", "pretrained": True})["Initial weights"]
    assert (
        "pretrained; the last layer is drawn at random from the run's seed. Weights: alexnet-owt-7be5be79.pth" in line
    )
    assert line.endswith(
        "of torchvision (BSD-3-Clause), trained on ImageNet, whose images are for research that is not commercial."
    )
    (line,) = lines(built, model="alexnet_bn")["Initial weights"]
    assert "not pretrained" in line


def test_layers_that_rest_are_told_where_there_are_any(built: tuple[Plan, Paths]) -> None:
    said = lines(built)
    assert "Trained layers" not in said
    assert "train all" not in said["Training"][0]
    (line,) = lines(built, training={"train": "head"})["Trained layers"]
    assert line.startswith(
        "The last layer alone: a linear probe. All else, running statistics of batch norm too, keeps"
    )
    runs = [{"algorithm": "fedavg", "training": {"train": train}} for train in ("all", ["norm", "head"])]
    whole, tuned = lines(built, runs=runs)["Trained layers"]
    assert (whole, tuned.partition(".")[0]) == ("All layers.", "Norms and the last layer: norm tuning")


def test_a_site_that_chooses_the_round_is_named(built: tuple[Plan, Paths]) -> None:
    elsewhere = lines(built, training={"rounds": 4, "select_at": ["third", "fourth"]})
    assert elsewhere["Model selection"] == [
        "The round with the highest mean validation accuracy at third and fourth, not used for training or tests."
    ]
    assert "select" not in elsewhere["Training"][0] + lines(built)["Training"][0]


OFFICIAL = {"internal": ["centre0", "centre3", "centre4"], "external": ["centre2"]}


def test_another_dataset_has_no_rules_of_wilds(built: tuple[Plan, Paths]) -> None:
    assert "WILDS' rules" not in lines(built)


def test_departures_from_wilds_are_named(built: tuple[Plan, Paths]) -> None:
    partition = OFFICIAL | {"external": ["centre1", "centre2"]}
    (line,) = lines(built, dataset=Camelyon17(), partition=partition)["WILDS' rules"]
    assert line.startswith(
        "Non-standard, because training is federated, which is another protocol; there is one seed, fewer than the 10 "
        "for Camelyon17; the split is not the official one (training at centres 0, 3 and 4, test at centre 2); the "
        "patches that WILDS keeps for in-distribution validation train too; the round is not chosen at centre 1; "
        "TsmoBN takes statistics of test images, without labels."
    )


def test_what_keeps_the_rules_is_not_blamed(built: tuple[Plan, Paths]) -> None:
    """Pooled training on the whole official split, without statistics of test images; one seed is left to blame."""
    partition = OFFICIAL | {"split": {"train": 1, "val": 0, "test": 0}}
    changes = {"runs": [{"algorithm": "pooled"}], "inferences": ["source"], "training": {"select": "last"}}
    findings = study_results.load(*built).findings
    for training in ({"select": "last"}, {"select_at": ["centre1"]}):
        whole = changes | {"training": training}
        study = fake_study.study(dataset=Camelyon17(id_val=False), partition=partition, **whole)
        findings.plan = Plan("fake", built[0].path, "paper", study)
        (line,) = wilds_rules(findings)
        assert line.startswith("Non-standard, because there is one seed, fewer than the 10 for Camelyon17. This is no")


def test_synthetic_images_are_no_entry(built: tuple[Plan, Paths]) -> None:
    findings = study_results.load(*built).findings
    findings.plan = Plan("fake", built[0].path, "mini", fake_study.study(dataset=Camelyon17(), figures=[]))
    (line,) = dict(protocol(findings))["WILDS' rules"]
    assert line.startswith("They do not apply to synthetic images. On the real images, these settings would be non-st")
