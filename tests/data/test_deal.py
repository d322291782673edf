"""Partitions that stand for several, and clients to which images are dealt: counts by algebra, and what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from fedshift import Training, study
from fedshift.core import digest
from fedshift.core.errors import UserError
from fedshift.core.registry import validated
from fedshift.core.rng import stream
from fedshift.data.inspection import inspect
from fedshift.data.partition import Deal, Partition, Split

CLIENTS = ("p", "q", "r")
TRAIN_ALL = Split(train=1.0, val=0, test=0)


def table(n: int = 400, classes: int = 3, patients: int | None = None) -> pd.DataFrame:
    """Samples of the sites A, B and C in turn, classes in blocks, and patients of eight samples each."""
    rows = {"sample": [f"s{i}" for i in range(n)], "site": ["ABC"[i % 3] for i in range(n)]}
    label = np.arange(n) * classes // n
    patient = [f"P{i // 8}" for i in range(n)] if patients else [None] * n
    return pd.DataFrame({**rows, "label": label, "patient": patient})


def dealt(samples: pd.DataFrame, internal: tuple[str, ...] = CLIENTS, **deal: Any) -> pd.DataFrame:
    """The assigned samples, all of which train, with their labels."""
    partition = Partition(internal=internal, external=("C",), split=TRAIN_ALL, deal=Deal(sites=("A", "B"), **deal))
    return partition.assign(samples).merge(samples[["sample", "label", "patient"]], on="sample")


@pytest.mark.parametrize("deal", [{}, {"labels": 0.5}, {"sizes": 0.5}])
def test_every_image_of_the_sites_goes_to_one_client_and_others_stay(deal: dict[str, float]) -> None:
    samples = table()
    out = dealt(samples, **deal)
    assert out["sample"].is_unique
    assert set(out["sample"]) == set(samples["sample"])
    inside = out["role"] == "internal"
    assert set(out.loc[inside, "site"]) == set(CLIENTS)
    assert set(out.loc[inside, "sample"]) == set(samples.loc[samples["site"] != "C", "sample"])
    assert set(out.loc[~inside, "site"]) == {"C"}
    again, other = dealt(samples, **deal), dealt(samples.iloc[::-1].reset_index(drop=True), **deal)
    pd.testing.assert_frame_equal(again, out)
    assert dict(zip(other["sample"], other["site"], strict=True)) == dict(zip(out["sample"], out["site"], strict=True))


def test_equal_parts_differ_by_one_image_at_most() -> None:
    counts = Counter(dealt(table(401)).query("role == 'internal'")["site"])
    assert sum(counts.values()) == 268
    assert max(counts.values()) - min(counts.values()) <= 1


def shares(key: tuple[object, ...], images: list[int], concentration: float) -> list[np.ndarray]:
    """Cuts of classes of so many images by running sums of Dirichlet shares, from the stream of the first draw."""
    rng, parts = stream(*key), []
    for n in images:
        rng.permutation(n)
        ends = np.floor(np.cumsum(rng.dirichlet([concentration] * 3))[:-1] * n + 1e-9)
        parts.append(np.diff([0, *ends, n]).astype(int))
    return parts


def test_each_class_is_divided_by_dirichlet_shares() -> None:
    out = dealt(table(), labels=2.0, least=1).query("role == 'internal'")
    counts = np.array([[((out["site"] == c) & (out["label"] == k)).sum() for c in CLIENTS] for k in range(3)])
    expected = shares((0, "deal", 0), counts.sum(1).tolist(), 2.0)
    assert counts.tolist() == [part.tolist() for part in expected]


def test_all_images_are_divided_by_dirichlet_shares() -> None:
    out = dealt(table(), sizes=2.0, least=1).query("role == 'internal'")
    counts = [int((out["site"] == c).sum()) for c in CLIENTS]
    assert counts == shares((0, "deal", 0), [sum(counts)], 2.0)[0].tolist()
    mixed = out.groupby("site")["label"].value_counts(normalize=True).unstack()
    assert (mixed.sub(mixed.mean(), axis=1).abs() < 0.15).all(axis=None), "classes are mixed alike"


def test_a_large_concentration_is_equal_and_a_small_one_is_not() -> None:
    def spread(concentration: float) -> float:
        out = dealt(table(), labels=concentration, least=1).query("role == 'internal'")
        mixed = out.groupby("site")["label"].value_counts(normalize=True).unstack(fill_value=0)
        return float(mixed.max(axis=1).mean())

    assert spread(1e6) == pytest.approx(1 / 3, abs=0.02)
    assert spread(0.05) > 0.6


def test_shares_are_drawn_anew_until_each_client_has_enough() -> None:
    out = dealt(table(), labels=0.1, least=60).query("role == 'internal'")
    assert min(Counter(out["site"]).values()) >= 60
    with pytest.raises(
        UserError, match=r"partition\.deal: 266 patients or images cannot fill 3 clients with at least 89"
    ):
        dealt(table(399), labels=0.1, least=89)


def test_a_patient_is_dealt_as_a_whole() -> None:
    out = dealt(table(patients=50), labels=0.5, least=2).query("role == 'internal'")
    assert (out.groupby("patient")["site"].nunique() == 1).all()
    free = table(patients=50)
    partition = Partition(internal=CLIENTS, split=TRAIN_ALL, by="sample", deal=Deal(sites=("A", "B")))
    apart = partition.assign(free).merge(free[["sample", "patient"]], on="sample")
    assert (apart.groupby("patient")["site"].nunique() > 1).any()


def test_dealt_clients_are_split_as_sites_are() -> None:
    partition = Partition(internal=CLIENTS, deal=Deal(sites=("A", "B"), sizes=5.0))
    out = partition.assign(table())
    assert set(out["split"]) == {"train", "val", "test"}
    for site in CLIENTS:
        n = int((out["site"] == site).sum())
        assert ((out["site"] == site) & (out["split"] == "test")).sum() == int(0.2 * n)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deal": {"sites": ["A"], "labels": 1, "sizes": 1}}, r"deal\.labels: and sizes are two ways to deal"),
        ({"deal": {"sites": ["A", "C"]}}, r"deal\.sites: site 'C' is external, and cannot be dealt"),
        ({"deal": {"sites": ["A"], "labels": 0}}, r"deal\.labels: .*greater than or equal to 0\.01"),
        ({"deal": {"sites": ["A"], "label": 1}}, r"unknown key 'label'; did you mean 'labels'"),
        ({"leave_one_out": True, "deal": {"sites": ["A"]}}, r"leave_one_out: is for real sites"),
        ({"leave_one_out": True, "held_out": "x"}, r"leave_one_out: stands for several partitions"),
        ({"leave_one_out": True, "internal": ["p"]}, r"leave_one_out: leaves no site to train at"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        validated(Partition, {"internal": ["p", "q"], "external": ["C"], **changes}, "partition")
    assert "\n" not in str(caught.value)


def test_clients_are_not_called_like_sites_and_dealt_sites_must_exist() -> None:
    wrong = Partition(internal=("A", "q"), deal=Deal(sites=("B", "D")))
    with pytest.raises(UserError, match="client 'A' has the name of a site of the data") as caught:
        wrong.assign(table())
    assert "unknown site 'D'" in str(caught.value)


def test_the_inspection_counts_what_clients_get() -> None:
    partition = Partition(internal=CLIENTS, deal=Deal(sites=("A", "B"), labels=1.0))
    samples = table()
    found = inspect(samples, ("x", "y", "z"), [(partition, Training(batch_size=2))])
    assert found.faults == []
    assert {site.name: site.roles for site in found.sites} == {"A": ("internal",), "B": ("internal",), "C": ()}
    assert {client.name for client in found.clients} == set(CLIENTS)
    assert sum(client.samples for client in found.clients) == (samples["site"] != "C").sum()


# ---- leave one site out


def planned(tmp_path: Path, partition: Any, runs: Any = "fedavg") -> study.Plan:
    declared = {
        "title": "t",
        "dataset": "camelyon17",
        "partition": partition,
        "model": "densenet_small",
        "runs": [{"algorithm": runs}] if isinstance(runs, str) else runs,
        "inferences": ["source"],
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    return study.load(tmp_path / "mine.yaml", "paper")


def test_one_word_stands_for_a_partition_for_each_site_left_out(tmp_path: Path) -> None:
    """They are the partitions that one would write by hand, with the same ids."""
    sites = ["centre0", "centre1", "centre2"]
    short = {"internal": sites, "external": ["centre4"], "leave_one_out": True, "truncate": True}
    by_hand = [
        {"internal": [s for s in sites if s != out], "external": [out, "centre4"], "truncate": True} for out in sites
    ]
    one, two = planned(tmp_path, short), planned(tmp_path, by_hand)
    assert list(one.runs) == list(two.runs)
    assert one.partitions == two.partitions
    assert [p.title for p in one.partitions] == [f"{s}+centre4" for s in sites]


def test_a_grid_may_leave_one_out_by_itself(tmp_path: Path) -> None:
    sites = {"internal": ["centre0", "centre1", "centre2"], "external": ["centre4"]}
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "partition": {"leave_one_out": True}}]
    assert Counter(run.algorithm.name for run in planned(tmp_path, sites, runs).runs.values()) == {
        "fedavg": 1,
        "fedprox": 3,
    }


def test_partitions_without_these_words_keep_their_ids() -> None:
    partition = Partition(internal=("A",), external=("C",))
    fields = {"internal": ["A"], "external": ["C"], "by": "patient", "truncate": False, "seed": 0}
    fields |= {"split": {"train": 0.7, "val": 0.1, "test": 0.2}, "limit": {"train": None, "val": None}}
    assert partition.identity("d") == digest.of({"dataset": "d", **fields})
    assert Partition(internal=("p",), deal=Deal(sites=("A",))).identity("d") != partition.identity("d")
