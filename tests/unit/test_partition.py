"""Splits: their sizes, what they keep together, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.errors import UserError
from fedshift.partition import Partition
from fedshift.registry import validated

Sites = dict[str, int]


def plain(sites: Sites) -> pd.DataFrame:
    """Samples of unknown patients, classes in turn."""
    rows = [
        {"sample": f"{site}/{i}", "site": site, "label": i % 2, "patient": None}
        for site, count in sites.items()
        for i in range(count)
    ]
    return pd.DataFrame(rows)


def grouped(sites: Sites, each: int = 10) -> pd.DataFrame:
    """`each` samples of every patient; patients differ in their share of positives."""
    rows = [
        {"sample": f"{site}/{p}/{i}", "site": site, "label": int(i < p % (each + 1)), "patient": f"{site}/{p}"}
        for site, patients in sites.items()
        for p in range(patients)
        for i in range(each)
    ]
    return pd.DataFrame(rows)


def partition(**changes: Any) -> Partition:
    settings: dict[str, Any] = {"internal": ["A", "B"], "external": ["C"]}
    return validated(Partition, settings | changes, "partition")


def sizes(assigned: pd.DataFrame, site: str) -> dict[str, int]:
    return assigned[assigned["site"] == site]["split"].value_counts().to_dict()


def test_single_samples_are_split_exactly_and_training_gets_the_rest() -> None:
    wanted = partition(internal=["A"], external=[], split={"train": 0.8, "val": 0.2, "test": 0.0})
    assert sizes(wanted.assign(plain({"A": 59436})), "A") == {"train": 47549, "val": 11887}


@pytest.mark.parametrize(("count", "expected"), [(10, (7, 1, 2)), (99, (71, 9, 19)), (1000, (700, 100, 200))])
def test_default_shares_of_a_site(count: int, expected: tuple[int, int, int]) -> None:
    found = sizes(partition().assign(plain({"A": count, "B": 20, "C": 5})), "A")
    assert tuple(found[k] for k in ("train", "val", "test")) == expected


def test_external_sites_are_tested_whole_and_other_sites_left_out() -> None:
    assigned = partition().assign(plain({"A": 20, "D": 20, "C": 33, "B": 20}))
    assert sizes(assigned, "C") == {"test": 33}
    assert set(assigned.loc[assigned["site"] == "C", "role"]) == {"external"}
    assert set(assigned.loc[assigned["site"] != "C", "role"]) == {"internal"}
    assert set(assigned["site"]) == {"A", "B", "C"}
    assert list(assigned) == ["sample", "site", "role", "split"]


def test_samples_keep_their_stored_order() -> None:
    table = plain({"C": 9, "B": 20, "A": 20}).sample(frac=1, random_state=1).reset_index(drop=True)
    assert list(partition(truncate=True).assign(table)["sample"]) == list(table["sample"])


def test_no_patient_is_torn_apart() -> None:
    table = grouped({"A": 30, "B": 17, "C": 4})
    assigned = partition().assign(table).merge(table[["sample", "patient"]])
    assert (assigned.groupby("patient")["split"].nunique() == 1).all()
    for site, patients in (("A", (21, 3, 6)), ("B", (12, 2, 3))):
        found = assigned[assigned["site"] == site].groupby("split")["patient"].nunique()
        assert tuple(found[k] for k in ("train", "val", "test")) == patients


def test_by_sample_ignores_patients() -> None:
    table = grouped({"A": 30, "B": 17, "C": 4})
    assigned = partition(by="sample").assign(table).merge(table[["sample", "patient"]])
    assert assigned.groupby("patient")["split"].nunique().max() == 3
    assert sizes(assigned, "A") == {"train": 210, "val": 30, "test": 60}


def test_splits_of_patients_have_like_shares_of_the_classes() -> None:
    table = grouped({"A": 44, "B": 44, "C": 1})
    assigned = partition().assign(table).merge(table[["sample", "label"]])
    share = assigned[assigned["role"] == "internal"].groupby(["site", "split"])["label"].mean()
    assert (share - 0.5).abs().max() < 0.05


def test_truncation_cuts_each_internal_site_to_the_smallest() -> None:
    table = plain({"A": 57, "B": 40, "C": 80})
    assigned = partition(truncate=True).assign(table)
    assert assigned["site"].value_counts().to_dict() == {"A": 40, "B": 40, "C": 80}
    kept = assigned.loc[assigned["site"] == "A", "sample"]
    assert list(kept) != list(table.loc[table["site"] == "A", "sample"][:40]), "the first ones, not a random draw"


def test_sites_that_show_the_same_images_split_them_alike() -> None:
    bases = np.arange(50)
    table = pd.concat(
        pd.DataFrame(
            {"sample": [f"{s}/{b}" for b in shown], "site": s, "label": shown % 2, "patient": None, "base": shown}
        )
        for s, shown in (("A", bases), ("B", bases[::-1]), ("C", bases))
    ).reset_index(drop=True)
    assigned = partition().assign(table).merge(table[["sample", "base"]])
    inside = assigned[assigned["role"] == "internal"].pivot(index="base", columns="site", values="split")
    assert (inside["A"] == inside["B"]).all()
    assert inside["A"].value_counts().to_dict() == {"train": 35, "val": 5, "test": 10}


def test_a_patient_of_two_internal_sites_stays_on_one_side() -> None:
    table = grouped({"A": 20, "B": 20, "C": 1})
    table.loc[table["patient"].str.startswith("B/1"), "patient"] = table["patient"].str.replace("B/", "A/")
    assigned = partition().assign(table).merge(table[["sample", "patient"]])
    shared = assigned.groupby("patient")["site"].nunique() > 1
    assert shared.sum() == 11
    assert (assigned.groupby("patient")["split"].nunique() == 1).all()


def test_a_patient_known_for_some_rows_only() -> None:
    table = grouped({"A": 20, "B": 20, "C": 1})
    unknown = (table["site"] == "A") & (table.index % 2 == 1)
    table.loc[unknown, "patient"] = None
    assigned = partition().assign(table).merge(table[["sample", "patient"]])
    assert (assigned.dropna().groupby("patient")["split"].nunique() == 1).all()
    alone = assigned[assigned["patient"].isna()]
    neighbours = alone["sample"].str.rpartition("/")[0]
    assert alone.groupby(neighbours)["split"].nunique().max() > 1, "each unknown patient counts as one of its own"


def test_the_same_split_each_time_and_another_with_another_seed() -> None:
    table = grouped({"A": 20, "B": 20, "C": 2})
    first, again, other = (partition(seed=s).assign(table) for s in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert (first["split"] != other["split"]).any()


def test_a_site_is_split_in_the_same_way_whatever_the_others_are() -> None:
    table = plain({"A": 40, "B": 40, "C": 40})
    alone = partition(internal=["A"], external=[]).assign(table)
    among = partition(internal=["C", "B", "A"], external=[]).assign(table)
    pd.testing.assert_frame_equal(alone, among[among["site"] == "A"].reset_index(drop=True))


def test_an_id_of_its_own_for_each_dataset_and_setting() -> None:
    made = {partition().identity("x"), partition().identity("y"), partition(seed=1).identity("x")}
    assert len(made) == 3
    assert partition(seed=0, split={"val": 0.1}).identity("x") in made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split": {"train": 0.5}}, "partition.split: train + val + test is 0.8; make it 1"),
        ({"internal": ["A", "A"]}, "partition.internal: site 'A' stands twice"),
        ({"external": ["C", "A"]}, "partition.external: site 'A' is internal and external at once"),
        ({"internal": []}, "partition.internal: Tuple should have at least 1 item"),
        ({"extrnal": ["D"]}, "partition.extrnal: unknown key 'extrnal'; did you mean 'external'?"),
        ({"by": "patients"}, "partition.by: unknown value 'patients'; did you mean 'patient'?"),
        ({"split": {"tran": 0.7}}, "partition.split.tran: unknown key 'tran'; did you mean 'train'?"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        partition(**changes)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("changes", "sites", "words"),
    [
        ({"internal": ["centreA"]}, {"centerA": 9, "C": 1}, "unknown site 'centreA'; did you mean 'centerA'?"),
        ({"external": ["X"]}, {"A": 9, "B": 9}, "unknown site 'X'; known: A, B"),
        ({}, {"A": 9, "B": 2, "C": 1}, "site 'B': has 2 patients, too few for train + val + test"),
    ],
)
def test_samples_that_do_not_fit(changes: dict[str, Any], sites: Sites, words: str) -> None:
    with pytest.raises(UserError, match=f"^partition: .*{words.replace('+', '.').replace('?', '.')}"):
        partition(**changes).assign(grouped(sites))


def test_a_site_that_gets_no_test_samples_is_refused() -> None:
    table = grouped({"A": 20, "B": 3, "C": 1})
    assigned = partition().assign(table).merge(table[["sample", "patient"]])
    trained = assigned[(assigned["site"] == "A") & (assigned["split"] == "train")]["patient"].unique()
    strangers = dict(zip([f"B/{p}" for p in range(3)], trained, strict=False))
    with pytest.raises(UserError, match="site 'B': gets no sample to test"):
        partition().assign(table.assign(patient=table["patient"].replace(strangers)))
