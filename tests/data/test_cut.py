"""Clients cut from a site: its test samples are held out first, and are the same however many clients there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift import study
from fedshift.algorithms import Training
from fedshift.core import digest
from fedshift.core.errors import UserError
from fedshift.core.registry import validated
from fedshift.data.inspection import inspect
from fedshift.data.partition import Partition
from fedshift.page.protocol import _partition

SPLIT = {"train": 0.8, "val": 0, "test": 0.2}


def samples(sizes: dict[str, int], classes: int = 10, patients: int = 0) -> pd.DataFrame:
    """Samples of each site with classes in turn; with `patients`, so many consecutive samples of a patient."""
    rows = [
        {
            "sample": f"{site}/{n}",
            "site": site,
            "label": n % classes,
            "patient": f"{site}/{n // patients}" if patients else None,
        }
        for site, size in sizes.items()
        for n in range(size)
    ]
    return pd.DataFrame(rows)


def partition(clients: int, sites: tuple[str, ...] = ("usps",), parts: int = 10, **more: Any) -> Partition:
    names = [f"{site}-{k + 1}" for site in sites for k in range(clients)]
    settings = {"internal": names, "cut": {"parts": parts, "clients": clients}, "split": SPLIT, "by": "class"}
    made: Partition = validated(Partition, settings | more, "partition")
    return made


def chosen(table: pd.DataFrame, split: str, *sites: str) -> set[str]:
    return set(table.loc[(table["split"] == split) & (table["site"].isin(sites) | (not sites)), "sample"])


@pytest.mark.parametrize("clients", [1, 3, 10])
def test_the_test_samples_are_those_of_the_whole_site_for_every_number_of_clients(clients: int) -> None:
    """USPS has 9,298 images: 1,860 test and 7,438 train, of which each tenth has 743 or 744."""
    data = samples({"usps": 9298})
    table = partition(clients, limit={"train": 743}).assign(data)
    whole = Partition(internal=("usps",), split=SPLIT, by="class").assign(data)
    assert chosen(table, "test") == chosen(whole, "test")
    assert len(chosen(table, "test")) == 1860
    sizes = table.groupby(["site", "split"]).size()
    assert {sizes[f"usps-{k + 1}", "train"] for k in range(clients)} == {743}
    assert {sizes[f"usps-{k + 1}", "test"] for k in range(clients)} == {1860 // clients}
    assert chosen(table, "train") <= chosen(whole, "train")
    assert not table["sample"].duplicated().any()
    assert set(table["role"]) == {"internal"}


def test_a_client_has_the_same_part_whoever_else_takes_part() -> None:
    data = samples({"a": 500, "b": 300})
    few, many = (partition(n, ("a", "b")).assign(data) for n in (2, 5))
    for client in ("a-1", "a-2", "b-2"):
        assert chosen(few, "train", client) == chosen(many, "train", client)
    assert chosen(few, "train") < chosen(many, "train")


def test_parts_are_even_in_size_and_class_and_hold_everything() -> None:
    data = samples({"a": 430}, classes=3)
    table = partition(4, ("a",), parts=4, split={"train": 0.7, "val": 0.1, "test": 0.2}).assign(data)
    rows = table.merge(data[["sample", "label"]], on="sample")
    assert len(rows) == 430
    for split in ("train", "val", "test"):
        counts = rows[rows["split"] == split].pivot_table(
            index="site", columns="label", values="sample", aggfunc="count"
        )
        assert (counts.max() - counts.min()).max() <= 1
        assert np.ptp(counts.sum(axis=1)) <= 1


def test_patients_stay_whole() -> None:
    data = samples({"a": 400}, classes=2, patients=5)
    table = partition(3, ("a",), parts=4, by="patient").assign(data).merge(data[["sample", "patient"]], on="sample")
    assert (table.groupby("patient")[["site", "split"]].nunique() == 1).all(axis=None)
    train = table[table["split"] == "train"].groupby("site")["patient"].nunique()
    assert np.ptp(train) <= 1


def test_external_sites_are_as_without_a_cut() -> None:
    table = partition(2, ("a",), external=["b"]).assign(samples({"a": 200, "b": 30, "c": 10}))
    assert table.loc[table["site"] == "b", ["role", "split"]].drop_duplicates().to_numpy().tolist() == [
        ["external", "test"]
    ]
    assert (table["site"] == "b").sum() == 30
    assert set(table["site"]) == {"a-1", "a-2", "b"}


def test_the_order_of_rows_is_that_of_the_samples() -> None:
    data = samples({"a": 100, "b": 100}).sample(frac=1, random_state=0).reset_index(drop=True)
    table = partition(10, ("a", "b")).assign(data)
    assert table["sample"].tolist() == data["sample"].tolist()


@pytest.mark.parametrize(
    ("internal", "cut", "said"),
    [
        (["a-1", "a-3"], {"parts": 3, "clients": 2}, "'a-2' is missing where each site is cut"),
        (["a-1", "b-1", "b-2"], {"parts": 3, "clients": 1}, "'b-2' is no client where each site is cut"),
        (["a"], {"parts": 3, "clients": 1}, "'a' is not a client of a site that is cut"),
        (["a-1"], {"parts": 1, "clients": 1}, "cut.parts"),
        (["a-1", "a-2", "a-3"], {"parts": 2, "clients": 3}, "3 clients cannot be made of 2 parts"),
    ],
)
def test_names_that_are_no_clients_are_refused(internal: list[str], cut: dict[str, int], said: str) -> None:
    with pytest.raises(UserError) as caught:
        validated(Partition, {"internal": internal, "cut": cut}, "partition")
    assert said in str(caught.value)


def test_a_site_is_not_cut_and_external_at_once() -> None:
    with pytest.raises(UserError, match="site 'a' is internal and external at once"):
        partition(1, ("a",), external=["a"])


def test_too_few_samples_and_unknown_sites_are_named() -> None:
    with pytest.raises(UserError, match="'a' has 8 samples or patients of the split train, too few for 10"):
        partition(1, ("a",), by="sample").assign(samples({"a": 10}))
    with pytest.raises(UserError, match="unknown site 'b'"):
        partition(1, ("b",)).assign(samples({"a": 100}))


def test_the_inspection_knows_that_the_site_trains() -> None:
    seen = inspect(samples({"a": 200}), tuple("0123456789"), [(partition(2, ("a",)), Training(batch_size=4))])
    assert [(site.name, site.roles) for site in seen.sites] == [("a", ("internal",))]
    assert seen.faults == []


def test_no_id_of_another_partition_changes() -> None:
    plain = Partition(internal=("a", "b"), external=("c",))
    settings = plain.model_dump(mode="json", exclude={"held_out", "leave_one_out", "cut", "deal"})
    # folds came later, and have no effect here
    settings["split"] = {"train": 0.7, "val": 0.1, "test": 0.2}
    assert plain.identity("data") == digest.of({"dataset": "data", **settings})
    one, two = partition(1).identity("data"), partition(1, parts=9).identity("data")
    assert len({one, two, Partition(internal=("usps-1",), split=SPLIT, by="class").identity("data")}) == 3


def test_figure_4c_tests_on_the_same_images_with_one_to_ten_clients() -> None:
    plan = study.load(Path("config/studies/fedbn-fig4c.yaml"), "paper")
    cuts = {part.cut.clients: part for part in plan.partitions if part.cut}
    assert sorted(cuts) == list(range(1, 11))
    assert len(plan.data) == 1, "all numbers of clients share one prepared dataset"
    assert {len(part.internal) for part in cuts.values()} == {5 * n for n in cuts}
    data = samples(dict.fromkeys(cuts[1].sources, 1000))
    free = {n: part.model_copy(update={"limit": Partition(internal=("a",)).limit}) for n, part in cuts.items()}
    tests = {n: chosen(part.assign(data), "test") for n, part in free.items()}
    assert all(test == tests[1] for test in tests.values())


def test_the_protocol_says_how_sites_are_cut() -> None:
    said = (
        "; the training samples of each site are then cut into 10 parts, one for each of its clients (3), which share"
    )
    assert said in _partition(partition(3))
    assert "cut into" not in _partition(Partition(internal=("a",)))
