"""FedBN's synthetic study: two normal classes at two clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.data.prepared import Prepared
from fedshift.datasets.gaussians import Gaussians
from fedshift.jobs import prepare
from fedshift.study.run import Data


def made(folder: Path, **settings: Any) -> Prepared:
    data = Data(dataset=Gaussians(**settings), synthetic=False)
    prepare.obtain(data, folder / "raw", None)
    prepare.prepare(data, folder / "raw", folder / "out", threads=2)
    return Prepared(folder / "out")


def drawn(folder: Path, **settings: Any) -> tuple[np.ndarray, pd.DataFrame]:
    dataset = Gaussians(**settings)
    dataset.download(folder, None)
    opened = dataset.open(folder)
    return np.array([opened.image(i) for i in range(len(opened.samples))], dtype=np.float64), opened.samples


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, pd.DataFrame]:
    return drawn(tmp_path_factory.mktemp("gaussians"), samples=10_000)


def test_vectors_of_ten_features(tmp_path: Path) -> None:
    found = made(tmp_path)
    assert (found.images.shape, found.images.dtype) == ((2000, 10), np.float32)
    assert found.shape == Gaussians.shape == (10,)
    counts = found.samples.groupby(["site", "label"]).size()
    assert counts.to_dict() == {(site, label): 500 for site in ("client1", "client2") for label in (0, 1)}
    assert found.samples["sample"].is_unique
    assert found.card["synthetic"] is False, "it is the published setting, not a miniature of it"
    assert "Synthetic by design" in found.card["caveat"]
    assert not Gaussians().has_miniature


@pytest.mark.parametrize("site", ["client1", "client2"])
@pytest.mark.parametrize("label", [0, 1])
def test_classes_lie_at_minus_and_plus_one(many: tuple[np.ndarray, pd.DataFrame], site: str, label: int) -> None:
    """The mean of 5,000 values with variance 1 has a standard error of 0.014, and the variance of 0.02."""
    x, samples = many
    own = x[((samples["site"] == site) & (samples["label"] == label)).to_numpy()]
    assert len(own) == 5000
    assert np.abs(own.mean(0) - (2 * label - 1)).max() < 0.06
    assert np.abs(own.var(0) - 1).max() < 0.1


def test_only_half_of_client2_is_correlated(many: tuple[np.ndarray, pd.DataFrame]) -> None:
    """Around its class's mean two features have covariance 0 at client1 and (0 + 0.5) / 2 at client2.

    There, every second sample is correlated: the mean of its 10 features has variance 0.1 + 0.9 * 0.5, that of the
    others 0.1. Standard errors of 10,000 products are 0.01, of variances of 5,000 means 2%.
    """
    x, samples = many
    centred = x - (2 * samples["label"].to_numpy() - 1)[:, None]
    off = ~np.eye(10, dtype=bool)
    for site, expected in (("client1", 0.0), ("client2", 0.25)):
        own = centred[(samples["site"] == site).to_numpy()]
        assert np.abs(np.cov(own.T)[off] - expected).max() < 0.06
    second = centred[(samples["site"] == "client2").to_numpy()].mean(1)
    for k, variance in enumerate((0.1, 0.55)):
        assert second[k::2].var() == pytest.approx(variance, rel=0.1)


def test_the_best_rule_errs_as_often_as_it_must(many: tuple[np.ndarray, pd.DataFrame]) -> None:
    """The sum of a vector is normal with mean 10 and variance 10 + 90 correlation, or the same at -10."""
    x, samples = many
    wrong = ((x.sum(1) > 0) != samples["label"].to_numpy())[(samples["site"] == "client2").to_numpy()]
    for k, correlation in enumerate((0.0, 0.5)):
        expected = norm.cdf(-np.sqrt(10 / (1 + 9 * correlation)))
        assert wrong[k::2].mean() == pytest.approx(expected, abs=4 * np.sqrt(expected / 5000))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_the_correlation_is_the_one_asked_for(tmp_path: Path, correlation: float) -> None:
    x, _ = drawn(tmp_path, samples=4000, correlation=correlation)
    own = x[4000:][1:2000:2]
    off = np.corrcoef(own.T)[~np.eye(10, dtype=bool)]
    assert np.abs(off - correlation).max() < 0.15, "1,000 samples: a standard error of 0.032 at most"


def test_alternating_signs_cancel_in_the_sum(tmp_path: Path) -> None:
    """Features k and j have correlation 0.5 (-1)^(k + j); the sum of ten then has variance 10 (1 - 0.5).

    It is N(+-10, 5), so that its sign errs with Phi(-sqrt(20)) = 4e-6: in none of 2,000 samples.
    """
    dataset = Gaussians(samples=4000, signs="alternating")
    dataset.download(tmp_path, None)
    opened = dataset.open(tmp_path)
    x = np.array([opened.image(i) for i in range(len(opened.samples))], dtype=np.float64)
    correlated = slice(4001, None, 2)
    label = opened.samples["label"].to_numpy()[correlated]
    centred = x[correlated] - (2 * label - 1)[:, None]
    sign = (-1.0) ** np.arange(10)
    expected = 0.5 * np.outer(sign, sign)
    off = ~np.eye(10, dtype=bool)
    assert np.abs(np.corrcoef(centred.T) - expected)[off].max() < 0.1, "2,000 samples: a standard error of 0.022"
    assert centred.sum(1).var() == pytest.approx(5, rel=0.13), "four standard errors of a variance of 2,000 sums"
    assert ((x[correlated].sum(1) > 0) == label).all()
    assert "alternating" in dataset.card().version
    assert "signs" not in Gaussians().identity()


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for folder, seed in ((one, 0), (same, 0), (other, 1)):
        Gaussians(seed=seed, samples=8).download(folder, None)
    content = [(folder / "gaussians.csv").read_bytes() for folder in (one, same, other)]
    assert content[0] == content[1] != content[2]
    table = pd.read_csv(one / "gaussians.csv")
    assert list(table) == ["site", "label", *(f"x{k}" for k in range(1, 11))]
    x = Gaussians(samples=8).open(one)
    np.testing.assert_array_equal([x.image(i) for i in range(16)], table.iloc[:, 2:].to_numpy().astype(np.float32))


def change(column: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def spoil(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({column: object})
        table.loc[5, column] = value
        return table

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda table: table.drop(columns="x7"), r"gaussians\.csv: no column 'x7'; it has site, label, x1"),
        (
            lambda table: table[:-3],
            r"gaussians\.csv: has 13 rows, expected 8 of client1, then as many of client2; delete",
        ),
        (lambda table: table[::-1], r"gaussians\.csv: has 16 rows, expected 8 of client1"),
        (change("label", 2), r"gaussians\.csv, row 7: label is 2, expected 0 or 1"),
        (change("x3", "much"), r"gaussians\.csv, row 7: expected 10 numbers, x1 to x10"),
        (change("x3", None), r"gaussians\.csv, row 7: expected 10 numbers"),
        (change("x10", float("inf")), r"gaussians\.csv, row 7: expected 10 numbers"),
    ],
)
def test_a_spoiled_table_is_named(tmp_path: Path, spoil: Callable[[pd.DataFrame], pd.DataFrame], words: str) -> None:
    dataset = Gaussians(samples=8)
    dataset.download(tmp_path, None)
    path = tmp_path / "gaussians.csv"
    spoil(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(UserError, match=words) as caught:
        dataset.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gaussians\.csv: no such file"):
        Gaussians().open(tmp_path)
    (tmp_path / "gaussians.csv").write_bytes(b"\x80\x00\xff")
    with pytest.raises(UserError, match=r"gaussians\.csv: (not a readable table|no column)"):
        Gaussians().open(tmp_path)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"correlation": 1}, "less than 1"),
        ({"correlation": -0.1}, "greater than"),
        ({"samples": 1001}, "multiple of 4"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("dataset", {"name": "gaussians", **settings})
