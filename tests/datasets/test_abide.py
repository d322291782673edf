"""ABIDE I: subjects, their files and windows, what is wrong with them, the miniature."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift import UserError
from fedshift.data.partition import Partition
from fedshift.data.prepared import Prepared
from fedshift.datasets import abide
from fedshift.datasets.abide import PHENOTYPES, SITES, Abide
from fedshift.io.download import Source
from fedshift.jobs import prepare
from fedshift.study.run import Data

SUBJECTS = {site: [f"{site}_005{place}00{k}" for k in range(2)] for place, site in enumerate(SITES)}
SUBJECT = "NYU_0050000"
FRAMES = 35


def written(raw: Path, frames: int = FRAMES, regions: int = 111) -> dict[str, np.ndarray]:
    """Two subjects a site in the official layout, with others in the table; the series by subject."""
    raw.mkdir(parents=True, exist_ok=True)
    rng, series = np.random.default_rng(0), {}
    rows = [(1, "PITT", "Pitt_0050003", "1"), (2, "NYU", "no_filename", "1"), (3, "UM_2", "UM_2_0050400", "2")]
    for k, name in enumerate(name for site in SITES[::-1] for name in SUBJECTS[site]):
        rows.append((10 + k, name.rpartition("_")[0], name, str(1 + k % 2)))
        found = 100 * rng.normal(size=(frames, regions)).cumsum(axis=0)
        lines = ["\t".join(f"#{2001 + r}" for r in range(regions))]
        lines += ["\t".join(f"{value:.6f}" for value in frame) for frame in found]
        (raw / f"{name}_rois_ho.1D").write_text("\n".join(lines) + "\n", encoding="utf-8")
        series[name] = np.round(found, 6)
    table = pd.DataFrame(rows, columns=["SUB_ID", "SITE_ID", "FILE_ID", "DX_GROUP"])
    table.insert(0, "i", range(len(table)))
    table.to_csv(raw / PHENOTYPES, index=False)
    return series


def by_numpy(window: np.ndarray, clip: bool = True) -> np.ndarray:
    """Fisher's z of the correlations of a window (frames, regions), pair by pair in the order (0, 1), (0, 2), ..."""
    r = np.corrcoef(window.T)
    z = np.arctanh(np.array([r[a, b] for a in range(len(r)) for b in range(a + 1, len(r))]))
    return np.maximum(z, 0) if clip else z


# ---- subjects


def test_every_window_of_a_subject_of_the_four_sites_is_a_sample(tmp_path: Path) -> None:
    series = written(tmp_path)
    opened = Abide().open(tmp_path)
    samples = opened.samples
    assert samples["site"].tolist() == [site for site in SITES for _ in range(2 * 4)]
    assert samples["patient"].tolist() == [name for site in SITES for name in SUBJECTS[site] for _ in range(4)]
    assert samples["sample"].iloc[[0, 3, 4]].tolist() == [f"{SUBJECT}/000", f"{SUBJECT}/003", "NYU_0050001/000"]
    groups = samples.groupby("patient")["label"].unique().map(list).to_dict()
    assert groups == {name: [1 - k] for site in SITES for k, name in enumerate(SUBJECTS[site])}, "DX_GROUP 1 is autism"
    for i in (0, 3, 4, 31):
        name, _, start = samples["sample"][i].partition("/")
        window = np.delete(series[name], 82, axis=1)[int(start) : int(start) + 32]
        found = opened.image(i)
        assert (found.shape, found.dtype) == ((5995,), np.float32)
        np.testing.assert_allclose(found, by_numpy(window), rtol=1e-4, atol=1e-5)


def test_published_frames_make_the_published_windows(tmp_path: Path) -> None:
    """Frames of UM_1, NYU, USM and UCLA_1; subjects 88, 167, 52, 63; windows in all from the paper's sizes."""
    windows = {}
    for frames, subjects in ((296, 88), (176, 167), (236, 52), (116, 63)):
        file = tmp_path / "x.1D"
        file.write_text("#2001\t#2002\n" + "1.0\t2.0\n" * frames + "\n", encoding="utf-8")
        windows[frames] = (abide._frames(file, 32) - 31) * subjects
    assert windows == {296: 23_320, 176: 24_215, 236: 10_660, 116: 5_355}


def test_other_numbers_of_subjects_than_the_papers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table 10 of FedBN; the files have two subjects a site."""
    written(tmp_path / "mirror")
    (tmp_path / "raw").mkdir()
    Abide().download(tmp_path / "raw", tmp_path / "mirror")
    said = capsys.readouterr()
    text = said.out + said.err
    for site, number in (("NYU", 167), ("UCLA_1", 63), ("UM_1", 88), ("USM", 52)):
        assert f"warning: {site} has 2 subjects with a file, and {number} in FedBN's table 10" in text
    published = pd.DataFrame({"SITE_ID": ["NYU"] * 167 + ["UCLA_1"] * 63 + ["UM_1"] * 88 + ["USM"] * 52})
    assert abide.differences(published) == []


def test_files_without_the_dropped_region_are_taken_as_they_are(tmp_path: Path) -> None:
    series = written(tmp_path, regions=110)
    np.testing.assert_allclose(Abide().open(tmp_path).image(0), by_numpy(series[SUBJECT][:32]), rtol=1e-4, atol=1e-5)


def test_settings_of_the_features(tmp_path: Path) -> None:
    series = written(tmp_path)
    opened = Abide(window=35, clip=False).open(tmp_path)
    assert len(opened.samples) == 8
    expected = by_numpy(np.delete(series[SUBJECT], 82, axis=1), clip=False)
    np.testing.assert_allclose(opened.image(0), expected, rtol=1e-4, atol=1e-5)
    assert (expected < 0).any()


def test_standardised_features_have_mean_0_and_deviation_1_at_each_site(tmp_path: Path) -> None:
    written(tmp_path)
    plain, standard = (Abide(standardise=s).open(tmp_path) for s in (False, True))
    for place in range(4):
        rows = range(8 * place, 8 * place + 8)
        x = np.array([plain.image(i) for i in rows], dtype=np.float64)
        found = np.array([standard.image(i) for i in rows])
        assert found.dtype == np.float32
        deviation = np.where(x.std(0) > 0, x.std(0), 1)
        np.testing.assert_allclose(found, (x - x.mean(0)) / deviation, rtol=1e-4, atol=1e-4)
    assert "test windows included" in Abide(standardise=True).card().caveat
    assert "to be tested" not in Abide().card().caveat


def test_images_do_not_depend_on_who_asks_first(tmp_path: Path) -> None:
    written(tmp_path)
    in_order = [opened.image(i) for opened in [Abide().open(tmp_path)] for i in range(32)]
    opened = Abide().open(tmp_path)
    order = np.random.default_rng(0).permutation(32)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(opened.image, order.tolist()))
    for i, x in zip(order, found, strict=True):
        np.testing.assert_array_equal(x, in_order[i])


# ---- what is wrong with the files


def table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[Path], None]:
    def spoil(raw: Path) -> None:
        change(pd.read_csv(raw / PHENOTYPES, dtype=str)).to_csv(raw / PHENOTYPES, index=False)

    return spoil


def cell(column: str, value: Any) -> Callable[[Path], None]:
    """Return a change of one cell in row 6 of the file, a subject of USM."""
    return table(lambda t: t.assign(**{column: t[column].where(t.index != 4, value)}))


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """Return a change of the lines of the first subject's file."""

    def spoil(raw: Path) -> None:
        file = raw / f"{SUBJECT}_rois_ho.1D"
        file.write_text("\n".join(change(file.read_text(encoding="utf-8").splitlines())), encoding="utf-8")

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda raw: (raw / PHENOTYPES).unlink(), r"preprocessed1\.csv: no such file"),
        (table(lambda t: t.drop(columns="DX_GROUP")), r"preprocessed1\.csv: no column 'DX_GROUP'; it has i, SUB_ID"),
        (
            table(lambda t: t[t["SITE_ID"] != "UCLA_1"]),
            r"preprocessed1\.csv: lists no subject of site UCLA_1 with a file; obtain it again",
        ),
        (cell("DX_GROUP", "3"), r"preprocessed1\.csv, row 6: DX_GROUP is '3', expected 1 or 2"),
        (cell("DX_GROUP", None), r"preprocessed1\.csv, row 6: DX_GROUP is nan, expected 1 or 2"),
        (cell("FILE_ID", "../x"), r"preprocessed1\.csv, row 6: FILE_ID is '\.\./x', expected letters, digits and _"),
        (cell("FILE_ID", None), r"preprocessed1\.csv, row 6: FILE_ID is nan, expected letters, digits and _"),
        (
            lambda raw: (raw / f"{SUBJECT}_rois_ho.1D").unlink(),
            rf"{SUBJECT}_rois_ho\.1D: no such file, though the table lists its subject; obtain it again",
        ),
        (lines(lambda t: t[:20]), rf"{SUBJECT}_rois_ho\.1D: has 19 frames, expected 32 or more; .* a shorter window"),
        (lines(lambda t: []), rf"{SUBJECT}_rois_ho\.1D: has 0 frames"),
    ],
)
def test_a_spoiled_file_is_named_at_once(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    written(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        Abide().open(tmp_path)
    assert "\n" not in str(caught.value)


def replaced(frame: int, region: int, value: str) -> Callable[[Path], None]:
    def change(text: list[str]) -> list[str]:
        cells = text[frame + 1].split("\t")
        cells[region] = value
        return [*text[: frame + 1], "\t".join(cells), *text[frame + 2 :]]

    return lines(change)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lines(lambda t: [line.rpartition("\t")[0] for line in t] + ["1"]), "not a table of numbers: "),
        (lines(lambda t: [line.split("\t", 2)[2] for line in t]), r"has 109 regions, expected 111 \(or 110\)"),
        (lines(lambda t: [*t[:-1], t[-1][: len(t[-1]) // 2]]), "not a table of numbers: "),
        (replaced(3, 5, "n/a"), "not a table of numbers: "),
        (replaced(3, 5, "nan"), "frame 3, region 5 is nan, expected a number"),
        (replaced(34, 110, "inf"), "frame 34, region 110 is inf, expected a number"),
    ],
)
def test_a_spoiled_series_is_named_when_it_is_read(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    written(tmp_path)
    spoil(tmp_path)
    opened = Abide().open(tmp_path)
    with pytest.raises(UserError, match=rf"{SUBJECT}_rois_ho\.1D: {words}") as caught:
        opened.image(0)
    assert "\n" not in str(caught.value)
    assert opened.image(8).shape == (5995,), "another subject's"


# ---- where they come from


def test_the_table_and_the_files_of_its_subjects_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Source] = []
    original = abide.fetch

    def noted(source: Source, *given: Any) -> Path:
        asked.append(source)
        return original(source, *given)

    monkeypatch.setattr(abide, "fetch", noted)
    series = written(tmp_path / "mirror")
    Abide().download(tmp_path / "raw", tmp_path / "mirror")
    assert {f.name for f in (tmp_path / "raw").iterdir()} == {PHENOTYPES, *(f"{name}_rois_ho.1D" for name in series)}
    root = "https://s3.amazonaws.com/fcp-indi/data/Projects/ABIDE_Initiative/"
    (known,) = Abide().sources()
    assert known.url == root + PHENOTYPES
    assert [s.url for s in asked] == [
        f"{root}Outputs/cpac/filt_noglobal/rois_ho/{name}_rois_ho.1D" for site in SITES for name in SUBJECTS[site]
    ]


# ---- the miniature


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("abide")
    data = Data(dataset=Abide(), synthetic=True)
    prepare.obtain(data, folder / "raw", None)
    prepare.prepare(data, folder / "raw", folder / "out", threads=2)
    return Prepared(folder / "out")


def test_the_miniature_is_prepared(made: Prepared) -> None:
    assert (made.images.shape, made.images.dtype) == ((4 * 6 * 9, 5995), np.float32)
    assert made.shape == Abide.shape == (5995,)
    people = made.samples.drop_duplicates("patient").groupby(["site", "label"]).size()
    assert people.to_dict() == {(site, label): 3 for site in SITES for label in (0, 1)}
    assert np.isfinite(made.images).all()
    assert made.images.min() == 0
    assert made.card["sites"]["USM"] == {"images": 54, "patients": 6}


def test_the_miniature_is_the_same_to_the_byte(made: Prepared, tmp_path: Path) -> None:
    Abide().miniature(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + 4 * 6
    for file in files:
        assert file.read_bytes() == (made.folder.parent / "raw" / file.name).read_bytes()


def test_a_partition_keeps_the_windows_of_a_subject_together(made: Prepared) -> None:
    partition = Partition(internal=SITES, split={"train": 0.7, "val": 0.0, "test": 0.3})  # type: ignore[arg-type]
    assigned = partition.assign(made.samples).merge(made.samples[["sample", "patient"]])
    assert (assigned.groupby("patient")["split"].nunique() == 1).all()
    assert set(assigned["split"]) == {"train", "test"}


def test_autism_can_be_told_in_subjects_of_the_other_sites(made: Prepared) -> None:
    """The classifier takes the nearer of two mean vectors of the three other sites; chance is 0.5."""
    x, label, site = np.array(made.images), made.samples["label"].to_numpy(), made.samples["site"].to_numpy()
    for name in SITES:
        centre = np.stack([x[(site != name) & (label == k)].mean(0) for k in (0, 1)])
        found = ((x[site == name][:, None] - centre) ** 2).sum(-1).argmin(1)
        assert (found == label[site == name]).mean() > 0.8


def test_sites_of_the_miniature_differ(made: Prepared) -> None:
    """Their mean correlation differs, from the first to the last in the order in which they are drawn."""
    mean = [made.images[(made.samples["site"] == name).to_numpy()].mean() for name in SITES]
    assert mean == sorted(mean)
    assert mean[-1] > 1.5 * mean[0]
