"""Splits: their sizes, what they keep together, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.core import digest
from fedshift.core.errors import UserError, UserErrors
from fedshift.core.registry import validated
from fedshift.data.partition import Partition

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


WORDS = ["train", "Training", "val", "VALID ", "test"]


def stated(sites: Sites, words: list[Any]) -> pd.DataFrame:
    table = plain(sites)
    return table.assign(split=[words[n % len(words)] for n in range(len(table))])


def test_a_column_states_the_splits_of_internal_sites() -> None:
    table = stated({"A": 10, "B": 20, "C": 5}, WORDS)
    assigned = partition(split={"column": "split"}).assign(table)
    assert sizes(assigned, "A") == {"train": 4, "val": 4, "test": 2}
    assert sizes(assigned, "C") == {"test": 5}
    merged = assigned.merge(table[["sample", "split"]], on="sample", suffixes=("", "_stated"))
    internal = merged[merged["role"] == "internal"]
    assert {*zip(internal["split_stated"], internal["split"], strict=True)} == {
        *zip(WORDS, ["train", "train", "val", "val", "test"], strict=True)
    }


def test_the_column_is_the_identity_and_shares_are_not() -> None:
    ids = [partition(split=split).identity("d") for split in ({"column": "a"}, {"column": "b"}, {})]
    assert len({*ids}) == 3


@pytest.mark.parametrize(
    ("words", "split", "said"),
    [
        (["train", "val", "held out"], {}, "column 'split' holds 'held out' (3 images)"),
        (
            ["train", "test"],
            {},
            "has no image of the split val in the column 'split'; say so: split: { column: split, ",
        ),
        (["val", "test"], {}, "has no image of the split train in the column 'split'; correct the column"),
        (["train", "val", "test"], {"column": "splits"}, "the samples have no column 'splits'"),
        (["train", "val", "test"], {"folds": 2}, "column: cannot be combined with folds"),
    ],
)
def test_faults_of_a_stated_split_are_one_line(words: list[str], split: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        partition(internal=["A"], split={"column": "split", **split}).assign(stated({"A": 9, "C": 3}, words))
    assert said in str(error.value)


def test_a_split_that_is_said_not_to_be_there_is_not_asked_for() -> None:
    wanted = partition(split={"column": "split", "val": 0})
    assert sizes(wanted.assign(stated({"A": 9, "B": 9, "C": 3}, ["train", "test"])), "A") == {"train": 5, "test": 4}


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


def test_one_name_at_two_sites_is_two_patients_as_between_real_sites() -> None:
    """A hospital cannot know the numbers of another's patients: the splits are those with different names."""
    table = grouped({"A": 20, "B": 20, "C": 1})
    alike = table.assign(patient=table["patient"].str.partition("/")[2])
    assert alike["patient"].nunique() < table["patient"].nunique()
    pd.testing.assert_frame_equal(partition().assign(alike), partition().assign(table))


def test_a_patient_known_for_some_rows_only() -> None:
    table = grouped({"A": 20, "B": 20, "C": 1})
    unknown = (table["site"] == "A") & (table.index % 2 == 1)
    table.loc[unknown, "patient"] = None
    assigned = partition().assign(table).merge(table[["sample", "patient"]])
    assert (assigned.dropna().groupby("patient")["split"].nunique() == 1).all()
    alone = assigned[assigned["patient"].isna()]
    neighbours = alone["sample"].str.rpartition("/")[0]
    assert alone.groupby(neighbours)["split"].nunique().max() > 1, "each unknown patient counts as one of its own"


# ---- equal shares of each class


def classes(site: str, counts: list[int], patients: int = 0) -> pd.DataFrame:
    """So many samples of each class, in stored order of classes."""
    label = np.repeat(np.arange(len(counts)), counts)
    rows = [(f"{site}/{n}", site, k, f"{site}/{n % patients}" if patients else None) for n, k in enumerate(label)]
    return pd.DataFrame(rows, columns=["sample", "site", "label", "patient"])


SHARES = {"train": 0.4, "val": 0.4, "test": 0.2}
COUNTS = [
    [12, 21, 12, 13, 10, 24, 22, 12, 8, 23],
    [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
    [500, 7, 13],
    [10, 10],
]


def by_class(table: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    """Samples of each class (columns) in each split (rows)."""
    wanted = partition(internal=["A"], external=[], by="class", **{"split": SHARES, **changes})
    found = wanted.assign(table).merge(table[["sample", "label"]])
    return found.groupby(["split", "label"]).size().unstack(fill_value=0)


@pytest.mark.parametrize("counts", COUNTS)
def test_each_class_is_split_in_the_same_shares(counts: list[int]) -> None:
    """ceil(share n) test, then as many validate, each class within one sample of its part of what was left."""
    left, n = np.array(counts), sum(counts)
    found = by_class(classes("A", counts))
    for name in ("test", "val"):
        size = -(-n * round(10 * SHARES[name]) // 10)
        assert found.loc[name].sum() == size
        assert np.abs(found.loc[name] - size * left / left.sum()).max() < 1
        left = left - found.loc[name].to_numpy()
    assert found.loc["train"].tolist() == left.tolist()


def test_a_split_by_class_is_drawn_by_the_seed_and_for_each_site() -> None:
    table = pd.concat([classes("A", [60, 40]), classes("B", [60, 40])]).reset_index(drop=True)

    def tested(seed: int, site: str) -> list[int]:
        found = partition(internal=["A", "B"], external=[], by="class", split=SHARES, seed=seed).assign(table)
        return np.flatnonzero(found[found["site"] == site]["split"] == "test").tolist()

    assert tested(0, "A") == tested(0, "A") != tested(1, "A")
    assert tested(0, "A") != tested(0, "B")
    assert tested(0, "A") != list(range(12)) + list(range(60, 68)), "the first ones, not a random draw"


def test_a_split_by_class_ignores_patients() -> None:
    table = classes("A", [50, 50], patients=4)
    found = partition(internal=["A"], external=[], by="class", split=SHARES).assign(table).merge(table)
    assert (found.groupby("patient")["split"].nunique() == 3).all()


def test_without_a_share_no_split_by_class_validates() -> None:
    found = by_class(classes("A", [30, 20]), split={"train": 0.8, "val": 0.0, "test": 0.2})
    assert found.to_dict("index") == {"test": {0: 6, 1: 4}, "train": {0: 24, 1: 16}}


@pytest.mark.parametrize("counts", [[40, 1], [1] * 10, [3, 2]])
def test_a_class_with_too_few_samples_is_refused(counts: list[int]) -> None:
    words = "^partition: site 'A': cannot be split by class: .*; set by: sample, or make the site external$"
    with pytest.raises(UserError, match=words):
        by_class(classes("A", counts))


# ---- limits


@pytest.mark.parametrize("by", ["class", "sample"])
def test_a_limit_leaves_out_samples_that_train_or_validate(by: str) -> None:
    table = plain({"A": 100, "B": 40, "C": 30})
    without = partition(by=by, split=SHARES).assign(table)
    found = partition(by=by, split=SHARES, limit={"train": 12, "val": 9}).assign(table)
    assert sizes(found, "A") == {"train": 12, "val": 9, "test": 20}
    assert sizes(found, "B") == {"train": 12, "val": 9, "test": 8}
    assert sizes(found, "C") == {"test": 30}
    kept = found.merge(without, on=list(found))
    assert len(kept) == len(found), "each keeps the split that it has without a limit"
    assert list(found["sample"]) == [s for s in without["sample"] if s in set(found["sample"])]


@pytest.mark.parametrize(
    ("limit", "train", "val"),
    [
        ({"train": 0.5}, 50, 100),
        ({"train": 0.29, "val": 0.1}, 29, 10),
        ({"train": 0.499}, 49, 100),
        ({"val": 100}, 100, 100),
        ({"train": 1}, 1, 100),
    ],
)
def test_a_limit_is_a_number_or_a_share_of_what_the_split_gives(limit: Sites, train: int, val: int) -> None:
    """The split gives 100 and 100. A share rounds down; 0.29 of 100 is 29, although 0.29 * 100 is less in floats."""
    wanted = partition(internal=["A"], external=[], by="sample", split=SHARES, limit=limit)
    assert sizes(wanted.assign(plain({"A": 250})), "A") == {"train": train, "val": val, "test": 50}


def test_what_a_limit_leaves_out_is_drawn_by_the_seed_and_the_same_with_other_sites() -> None:
    table = plain({"A": 100, "B": 60, "C": 30})

    def trained(names: list[str], **changes: Any) -> list[str]:
        wanted = partition(internal=names, external=[], by="sample", limit={"train": 10}, **changes)
        found = wanted.assign(table)
        return found.loc[(found["site"] == "A") & (found["split"] == "train"), "sample"].tolist()

    assert trained(["A"]) == trained(["A"]) == trained(["B", "C", "A"])
    assert trained(["A"]) != trained(["A"], seed=1)
    whole = partition(internal=["A"], external=[], by="sample").assign(table)
    assert trained(["A"]) != whole.loc[whole["split"] == "train", "sample"].tolist()[:10], "the first, not a draw"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"train": 41}, "limit.train asks for 41 images of site 'A', and the split gives 40; lower the limit"),
        ({"val": 1000}, "limit.val asks for 1000 images of site 'A', and the split gives 40"),
        ({"train": 0.01}, "limit.train asks for 0 images of site 'A', and the split gives 40"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(limit: Sites, words: str) -> None:
    wanted = partition(internal=["A"], external=[], by="sample", split=SHARES, limit=limit)
    with pytest.raises(UserError) as caught:
        wanted.assign(plain({"A": 100}))
    assert str(caught.value).startswith(f"partition: {words}")


@pytest.mark.parametrize("limit", [{"train": 0}, {"train": -3}, {"val": 1.5}, {"train": "many"}, {"test": 10}])
def test_a_limit_that_is_none_is_refused(limit: dict[str, Any]) -> None:
    (key,) = limit
    with pytest.raises(UserError, match=rf"partition\.limit\.{key}"):
        partition(limit=limit)


def test_a_limit_is_part_of_the_identity() -> None:
    made = {partition(limit=limit).identity("x") for limit in ({}, {"train": 5}, {"val": 5}, {"train": 0.5})}
    assert len(made) == 4
    assert partition().identity("x") in made


# ---- what a split depends on


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
        ({"split": {"train": 0.5}}, "partition.split: train + val + test is 0.8; make the sum 1"),
        ({"internal": ["A", "A"]}, "partition.internal: site 'A' appears twice"),
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
    """Its images are copies of those that an earlier site trains on."""
    table = plain({"A": 20, "B": 3, "C": 1}).assign(base=lambda t: t["sample"])
    assigned = partition(internal=["A"]).assign(table)
    trained = assigned[(assigned["site"] == "A") & (assigned["split"] == "train")]["sample"]
    copies = dict(zip([f"B/{i}" for i in range(3)], trained, strict=False))
    with pytest.raises(UserError, match="site 'B': has no sample left for test"):
        partition().assign(table.assign(base=table["base"].replace(copies)))


def test_every_site_that_cannot_be_used_is_named_at_once() -> None:
    with pytest.raises(UserErrors) as caught:
        partition(internal=["A", "B", "D"]).assign(plain({"A": 2, "A ": 9, "B": 1, "C": 3}))
    lines = [line.partition(";")[0] for line in str(caught.value).splitlines()]
    assert lines == [
        "partition: site 'A' is also spelt 'A ' in the data (images: 9)",
        "partition: unknown site 'D'",
        "partition: site 'A': has 2 samples, too few for train + val + test",
        "partition: site 'B': has 1 samples, too few for train + val + test",
    ]


def test_spellings_that_the_study_names_are_sites_of_their_own() -> None:
    made = partition(internal=["A"], external=["a"]).assign(plain({"A": 20, "a": 5}))
    assert made.groupby("site")["role"].unique().map(list).to_dict() == {"A": ["internal"], "a": ["external"]}


def test_many_unknown_sites_are_counted() -> None:
    """Twenty lines and their number, not a line each."""
    names = tuple(f"hospital {n}" for n in range(9_999))
    wanted = Partition(internal=(*names, "near"), external=("far",))
    samples = pd.DataFrame({"sample": ["1", "2"], "site": ["near", "far"], "label": [0, 1], "patient": ["p", "q"]})
    with pytest.raises(UserErrors) as caught:
        wanted.assign(samples)
    lines = [line for line in str(caught.value).splitlines() if "hospital" in line or "more like these" in line]
    assert len(lines) == 21
    assert lines[-1].endswith("9,979 more like these")


def in_folds(number: int, **changes: Any) -> list[Partition]:
    """The partitions of a number of folds, whose other samples train and validate."""
    return [*partition(split={"folds": number, "val": 0.2}, **changes).each()]


def test_every_patient_of_an_internal_site_is_tested_in_one_fold() -> None:
    samples = grouped({"A": 23, "B": 12, "C": 5})
    patient = samples.set_index("sample")["patient"]
    tables = [fold.assign(samples) for fold in in_folds(5)]
    tested: list[str] = []
    for table in tables:
        people = table.assign(patient=table["sample"].map(patient)).query("role == 'internal'")
        assert people.groupby("patient")["split"].nunique().max() == 1
        tested += [*people[people["split"] == "test"]["patient"].unique()]
    assert sorted(tested) == sorted(patient[~patient.str.startswith("C")].unique())
    outside = [table[table["role"] == "external"].reset_index(drop=True) for table in tables]
    for other in outside[1:]:
        pd.testing.assert_frame_equal(other, outside[0])


def test_folds_have_equally_many_patients_and_the_patients_with_most_of_the_rare_class_apart() -> None:
    samples = grouped({"A": 23, "B": 20}, each=10)
    number = samples["patient"].str[2:].astype(int)
    samples["label"] = (number < 5).astype(int)
    for fold in in_folds(5, external=[]):
        table = fold.assign(samples).merge(samples[["sample", "patient", "label"]], on="sample")
        tested = table[(table["split"] == "test") & (table["site"] == "A")]
        assert tested["patient"].nunique() in (4, 5)
        assert tested[tested["label"] == 1]["patient"].nunique() == 1


def test_folds_of_a_site_do_not_depend_on_the_patients_of_another_with_the_same_names() -> None:
    samples = grouped({"A": 10, "B": 10})
    alike = samples.assign(patient=samples["patient"].str[2:])
    for fold in in_folds(5, external=[]):
        pd.testing.assert_frame_equal(fold.assign(alike), fold.assign(samples))


def test_a_study_without_folds_keeps_the_id_of_its_partition() -> None:
    # The digest of {"dataset", ...} with the split's three shares, as it was before there were folds.
    wanted = partition(split={"train": 0.6, "val": 0.2, "test": 0.2})
    settings = wanted.model_dump(mode="json", exclude={"held_out", "leave_one_out", "cut", "deal", "split"})
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    assert wanted.identity("own") == digest.of({"dataset": "own", **settings, "split": shares})
    assert len({fold.identity("own") for fold in in_folds(5)}) == 5


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"folds": 5, "val": 0.8}, "train and val share only 0.8"),
        ({"folds": 5, "test": 0.3}, "a fold is 0.2"),
        ({"folds": 5, "fold": 6}, "fold: is 6, and folds is 5"),
        ({"fold": 1}, "fold: is 1, and folds is None"),
        ({"folds": 1}, "greater than or equal to 2"),
        ({"folds": "five"}, "folds"),
    ],
)
def test_shares_that_cannot_be_folds_are_refused(split: dict[str, Any], message: str) -> None:
    with pytest.raises(UserErrors, match=message):
        partition(split=split)


def test_more_folds_than_patients_of_a_class_are_refused_in_a_line() -> None:
    samples = grouped({"A": 20, "B": 20}, each=1)
    samples["label"] = samples["patient"].isin(["A/1", "A/2", "A/3", *(f"B/{p}" for p in range(9))]).astype(int)
    with pytest.raises(UserErrors, match=r"site 'A': patients or samples of class 1: 3, but each of 5 folds needs one"):
        in_folds(5, external=[])[0].assign(samples)


def test_leaving_sites_out_in_turn_is_not_combined_with_folds() -> None:
    with pytest.raises(UserErrors, match="cannot be combined with folds"):
        partition(leave_one_out=True, external=[], split={"folds": 5})
