"""The rules of verdicts: every number of the worked example follows from its images by NumPy, and is the product's."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_tables import tables
from scipy.stats import norm
from scipy.stats import t as student

from fedshift.analysis.verdict import Word, verdict
from fedshift.page.verdict_texts import Told

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import simulated

sys.path.pop()
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
Z = norm.ppf(0.975)


class Hospital:
    """A hospital of the example: patients with one image, of whom `always` are wrong in every training.

    `once` are so many others that are wrong in each training alone.
    """

    def __init__(self, name: str, patients: int, always: int, once: tuple[int, int, int]) -> None:
        self.name = name
        self.right = np.ones((3, patients))
        self.right[:, :always] = 0
        first = always
        for training, number in enumerate(once):
            self.right[training, first : first + number] = 0
            first += number

    def drawn(self, *_: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        label = np.arange(self.right.shape[1]) % 2
        return label, np.arange(len(label)), np.where(self.right == label, 0.9, 0.1)

    def numbers(self) -> dict[str, float]:
        """The level, and its variances over patients: in all, to either side, and what single trainings do to them."""
        n = self.right.shape[1]
        level = self.right.mean()
        own = (self.right - self.right.mean(1, keepdims=True)) / n * np.sqrt(n / (n - 1))
        patients = (own.mean(0) ** 2).sum()
        worth = level * (1 - level) / (patients * (n - 1) / n)
        half = Z * np.sqrt(level * (1 - level) / worth + Z**2 / (4 * worth**2))
        ends = (level + Z**2 / (2 * worth) + np.array([-half, half])) / (1 + Z**2 / worth)
        down, up = ((ends - level) / Z) ** 2
        residual = ((own - own.mean(0)) ** 2).sum() / (3 * 2)
        names = ("patients", "level", "variance", "worth", "down", "up", "residual")
        return dict(zip(names, (n, level, patients, worth, down, up, residual), strict=True))


HOME = Hospital("home", 100, 6, (0, 1, 2))
OUT = Hospital("out", 50, 9, (0, 2, 7))


def assert_printed(text: str, value: float) -> None:
    """The number is printed as it is, rounded to the digits that stand there."""
    digits = len(text.partition(".")[2])
    assert f"{value:.{digits}f}" == text


def by_hand() -> dict[str, float]:
    """The numbers of the example by the rules of the page, in float64."""
    home, out = HOME.numbers(), OUT.numbers()
    losses = HOME.right.mean(1) - OUT.right.mean(1)
    trainings = losses.var(ddof=1) / 3
    residual = home["residual"] + out["residual"]
    df_residual = residual**2 / (home["residual"] ** 2 / (2 * 99) + out["residual"] ** 2 / (2 * 49))
    found = {f"{name} {place}": value for place, one in (("home", home), ("out", out)) for name, value in one.items()}
    found |= {"loss": losses.mean(), "trainings": trainings, "residual": residual}
    for side, patients in (("low", home["down"] + out["up"]), ("high", home["up"] + out["down"])):
        own = trainings - residual
        total = residual + own + (patients - residual)
        assert own > 0.1 * trainings and patients > residual, "no component vanishes, so that none fades"
        df = total**2 / (trainings**2 / 2 + residual**2 / df_residual)
        half = student.ppf(0.975, df) * np.sqrt(total)
        found |= {f"patients {side}": patients, f"variance {side}": total, f"df {side}": df}
        found |= {side: losses.mean() + (half if side == "high" else -half)}
    return found


def test_the_numbers_of_the_example_follow_from_its_images() -> None:
    found = by_hand()
    (_, *sites), (_, *loss) = tables(PAGE.split("### An example by hand")[1].split("\n## ")[0])
    names = ("patients", "level", "variance", "worth", "down", "up", "residual")
    for name, (_, *cells) in zip(names, sites, strict=True):
        for place, cell in zip(("home", "out"), cells, strict=True):
            assert_printed(cell, found[f"{name} {place}"])
    names = ("loss", "trainings", "residual", "patients {}", "variance {}", "df {}", "{}")
    for name, (_, *cells) in zip(names, loss, strict=True):
        for side, cell in zip(("low", "high"), cells, strict=True):
            assert_printed(cell, found[name.format(side)])
    (losses,) = re.findall(r"The losses of the trainings are (.*), (.*) and (.*)\.\n", PAGE)
    for text, value in zip(losses, HOME.right.mean(1) - OUT.right.mean(1), strict=True):
        assert_printed(text, value)
    (ends,) = re.findall(r"outside it is worse by (.*) to (.*) points", PAGE)
    for text, side in zip(ends, ("low", "high"), strict=True):
        assert_printed(text, 100 * found[side])


def test_the_verdict_of_the_example_is_the_product_s() -> None:
    found, numbers = simulated.Trial([HOME], [OUT], "accuracy", 3).findings(np.random.default_rng(0)), by_hand()
    judged = verdict(found, found.conditions[0])
    assert judged.loss[:1] == pytest.approx((numbers["loss"],))
    assert (judged.loss.low, judged.loss.high) == pytest.approx((numbers["low"], numbers["high"]), abs=1e-9)
    assert judged.home.majority == 0.5 and judged.above.low > 0
    assert (judged.word, judged.open) == (Word.LOSES, True)
    assert Told(found, found.conditions[0], judged).text.word == "Loses, how much is open"
    assert "**Loses, how much is open**" in PAGE


def test_the_page_can_be_read() -> None:
    assert len(PAGE.split()) <= 3000
