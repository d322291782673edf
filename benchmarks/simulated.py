"""How often intervals hold the truth, and verdicts are true: `python benchmarks/simulated.py [--studies N] [--write]`.

Hospitals, patients, images and trainings are invented, with a known truth; every estimate, interval and verdict comes
from the functions that make those of a page. A study has patients with several images each, trainings that differ, and
what a training does to single patients. `--write` puts the tables into docs/coverage.md.

The standard error of a share of 600 studies is 0.9 points at 95 %, and of 200 it is 1.5.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtr, ndtri

from fedshift.analysis import effects, estimates, operating_point
from fedshift.analysis.effects import Estimates
from fedshift.analysis.estimates import Estimate
from fedshift.analysis.findings import Findings
from fedshift.analysis.numbers import Names, Numbers
from fedshift.analysis.verdict import verdict
from fedshift.core import registry
from fedshift.datasets import Card, Dataset
from fedshift.metrics import Metric
from fedshift.study.declaration import Threshold
from fedshift.study.plan import Plan, Study

PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
BEGIN, END = "<!-- Coverage begins: make coverage writes it -->\n", "<!-- Coverage ends -->"
LEVEL = 0.95
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


@dataclass(frozen=True)
class Hospital:
    """A hospital whose images have a latent score: that of their class, plus patient, image, training and both.

    `apart` is the distance of the classes; the deviations are those of patients, of images, of a training's shift of
    all scores, of how far a training tells the classes apart, and of what it does to single images. `positive` is the
    share of patients with the disease. The effects of trainings (trainings, 2) are standard normal.
    """

    name: str
    patients: int
    apart: float = 1.6
    images: int = 3
    positive: float = 0.5
    of_patients: float = 0.6
    of_images: float = 0.7
    of_trainings: float = 0.25
    of_learning: float = 0.25
    of_both: float = 0.4

    def drawn(self, rng: np.random.Generator, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labels (n,), the patients of the images (n,), and probabilities (trainings, n) of the disease."""
        sick = rng.random(self.patients) < self.positive
        people = np.repeat(np.arange(self.patients), self.images)
        label = sick[people].astype(int)
        own = self.of_patients * rng.standard_normal(self.patients)[people]
        own = own + self.of_images * rng.standard_normal(len(people))
        noise = self.of_both * rng.standard_normal((len(shifts), len(people)))
        apart = self.apart + self.of_learning * shifts[:, 1:]
        return label, people, expit(2 * ((label - 0.5) * apart + own + noise + self.of_trainings * shifts[:, :1]))

    @property
    def spread(self) -> float:
        """The deviation of scores of one class and training."""
        return float(np.sqrt(self.of_patients**2 + self.of_images**2 + self.of_both**2))

    def truth(self, metric: str) -> float:
        """Return the value over all patients and trainings."""
        shift = np.repeat(self.of_trainings * _NODES, len(_NODES))
        half = (self.apart + self.of_learning * np.tile(_NODES, len(_NODES))) / 2
        weights = np.outer(_WEIGHTS, _WEIGHTS).ravel()
        sensitivity, specificity = (ndtr((half + sign * shift) / self.spread) for sign in (1, -1))
        wrong = [expit(2 * (shift[:, None] + y * half[:, None] + self.spread * _NODES)) for y in (-1, 1)]
        of_healthy, of_sick = (((p - y) ** 2) @ _WEIGHTS for y, p in enumerate(wrong))
        each = {
            "auc": ndtr(np.sqrt(2) * half / self.spread),
            "balanced_accuracy": (sensitivity + specificity) / 2,
            "accuracy": self.positive * sensitivity + (1 - self.positive) * specificity,
            "brier": self.positive * of_sick + (1 - self.positive) * of_healthy,
        }
        return float(weights @ each[metric])

    def flagged(self, shifts: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
        """Return the sensitivity of each training (trainings,) at its threshold over all patients."""
        half = (self.apart + self.of_learning * shifts[:, 1]) / 2
        return ndtr((half + self.of_trainings * shifts[:, 0] - logit(thresholds) / 2) / self.spread)


@dataclass(frozen=True)
class Right:
    """A hospital whose images are right or wrong: so many of them are right, whatever their class."""

    name: str
    patients: int
    right: float
    images: int = 1
    alike: float = 0.4
    of_trainings: float = 0.1

    def truth(self, metric: str) -> float:
        """Return the share of right images over all patients and trainings."""
        return float(ndtr(ndtri(self.right) / np.sqrt(1 + self.of_trainings**2)))

    def drawn(self, rng: np.random.Generator, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labels, patients and probabilities, as `Hospital.drawn`; half of the patients have the disease."""
        people = np.repeat(np.arange(self.patients), self.images)
        label = people % 2
        latent = np.sqrt(self.alike) * rng.standard_normal(self.patients)[people]
        latent = latent + np.sqrt(0.9 - self.alike) * rng.standard_normal(len(people))
        noise = np.sqrt(0.1) * rng.standard_normal((len(shifts), len(people)))
        right = latent + noise + self.of_trainings * shifts[:, :1] < ndtri(self.right)
        return label, people, np.where(right == (label == 1), 0.9, 0.1)


def scored(one: Hospital | Right, rng: np.random.Generator, shifts: np.ndarray, metric: Metric) -> Estimate:
    """Return the estimate of a metric at a hospital over the trainings, as a study makes it."""
    return _over_trainings(metric, *one.drawn(rng, shifts), one.name)


def _over_trainings(
    metric: Metric, label: np.ndarray, people: np.ndarray, probability: np.ndarray, site: str
) -> Estimate:
    trainings = []
    for seed, one in enumerate(probability):
        score = estimates.of_metric(metric, label, np.stack([1 - one, one], 1), people, ("invented", site), seed)
        if not np.isnan(score.mean):
            trainings.append(score)
    return estimates.over_trainings(trainings) if trainings else estimates.NOTHING


def metric_of(name: str) -> Metric:
    """Return a metric by its name."""
    metric: Metric = registry.build("metric", name)
    return metric


class Covered(NamedTuple):
    """How many intervals there were, and how many of them held the truth."""

    held: int
    known: int
    of: int

    @property
    def text(self) -> str:
        """The share in percent; with the share of studies that have an interval, where some have none."""
        if not self.known:
            return "none"
        share = f"{100 * self.held / self.known:.0f}"
        return share if self.known == self.of else f"{share} ({100 * self.known / self.of:.0f} have one)"


def covered(found: Iterator[tuple[tuple[float, float], float]]) -> Covered:
    """Return how often intervals, each beside the truth, hold it."""
    rows = list(found)
    known = [(low, high, truth) for (low, high), truth in rows if not np.isnan(low)]
    return Covered(sum(low <= truth <= high for low, high, truth in known), len(known), len(rows))


# ---- intervals


def levels(name: str, patients: int, trainings: int, studies: int, seed: int = 0, **changes: Any) -> Covered:
    """Return the coverage of the score at one hospital."""
    metric, rng = metric_of(name), np.random.default_rng([seed, patients, trainings])
    hospital = Hospital("a", patients, **changes)
    truth = hospital.truth(name)

    def rows() -> Iterator[tuple[tuple[float, float], float]]:
        for _ in range(studies):
            one = scored(hospital, rng, rng.standard_normal((trainings, 2)), metric)
            yield one.bounded(metric.ends)[:2], truth

    return covered(rows())


def near_the_end(patients: int, trainings: int, images: int, studies: int, seed: int = 0) -> tuple[Covered, Covered]:
    """Return the coverage of a share of 89 % outside, and of the loss from 99 % at home."""
    metric, rng = metric_of("accuracy"), np.random.default_rng([seed, patients, trainings, images])
    home, outside = (Right(name, patients, right, images) for name, right in (("home", 0.99), ("out", 0.89)))
    truths = [one.truth("accuracy") for one in (home, outside)]
    level, loss = [], []
    for _ in range(studies):
        shifts = rng.standard_normal((trainings, 2))
        both = [scored(one, rng, shifts, metric) for one in (home, outside)]
        level.append((both[1].bounded(metric.ends)[:2], truths[1]))
        loss.append((estimates.minus(*both).bounded(metric.ends, difference=True)[:2], truths[0] - truths[1]))
    return covered(iter(level)), covered(iter(loss))


DIFFERENCES = ("loss", "gain", "difference")


def differences(name: str, patients: int, trainings: int, studies: int, seed: int = 0) -> dict[str, Covered]:
    """Return the coverage of a loss from three hospitals to two, of a gain there, and of another method's difference.

    The adapted and the other method see the same patients as the first; each moves their scores in its own way.
    """
    metric, rng = metric_of(name), np.random.default_rng([seed, patients, trainings])
    inside = [Hospital(f"in{k}", patients, apart=2.2) for k in range(3)]
    outside = [Hospital(f"out{k}", patients, apart=1.4) for k in range(2)]
    found: dict[str, list[tuple[tuple[float, float], float]]] = {what: [] for what in DIFFERENCES}
    better = [Hospital(one.name, patients, apart=1.8) for one in outside]
    truth_in, truth_out, truth_better = (
        float(np.mean([one.truth(name) for one in group])) for group in (inside, outside, better)
    )
    for _ in range(studies):
        shifts, others = rng.standard_normal((trainings, 2)), rng.standard_normal((trainings, 2))
        home = estimates.mean([scored(one, rng, shifts, metric) for one in inside])
        state = int(rng.integers(2**31))
        alone, adapted, other = (
            estimates.mean([scored(one, np.random.default_rng([state, k]), of, metric) for k, one in enumerate(group)])
            for group, of in ((outside, shifts), (better, shifts), (better, others))
        )
        for what, one, truth in (
            ("loss", estimates.minus(home, alone), truth_in - truth_out),
            ("gain", estimates.minus(adapted, alone), truth_better - truth_out),
            ("difference", estimates.minus(other, alone), truth_better - truth_out),
        ):
            found[what].append((one.bounded(metric.ends, difference=True)[:2], truth))
    return {what: covered(iter(rows)) for what, rows in found.items()}


def dice(patients: int, trainings: int, missed: float, studies: int, seed: int = 0) -> Covered:
    """Return the coverage of the mean Dice at a hospital where a share of the structures is missed altogether."""
    rng = np.random.default_rng([seed, patients, trainings, int(100 * missed)])
    rows = []
    for _ in range(studies):
        own = 0.05 * rng.standard_normal(patients)
        never = rng.random(patients) < 0.7 * missed
        scores = 0.85 + own + 0.03 * rng.standard_normal((trainings, patients))
        scores = np.clip(scores + 0.01 * rng.standard_normal((trainings, 1)), 0, 1)
        now = rng.random((trainings, patients)) < 0.3 * missed / (1 - 0.7 * missed)
        scores = np.where(never | now, 0.0, scores)
        people, group = np.arange(patients), ("invented", "a")
        of_trainings = [
            estimates.single(row.mean(), (row - row.mean()) / patients, people, group, seed, "unit")
            for seed, row in enumerate(scores)
        ]
        rows.append((estimates.over_trainings(of_trainings).bounded((0.0, 1.0))[:2], 0.85 * (1 - missed)))
    return covered(iter(rows))


def carried(patients: int, trainings: int, studies: int, seed: int = 0, of_truth: int = 4000) -> Covered:
    """Return the coverage of the sensitivity outside at a threshold for a specificity of 90 % at home.

    As many patients choose it as are tested outside. The truth is over all patients of both, and all trainings.
    """
    rng = np.random.default_rng([seed, patients, trainings])
    rule, home, outside = Threshold(specificity=0.9), Hospital("a", patients, apart=2.2), Hospital("out", patients)
    shifts, chosen = rng.standard_normal((of_truth, 1, 2)), []
    for one in shifts:
        label, _, (score,) = home.drawn(rng, one)
        chosen.append(operating_point.choose(rule, label == 1, score))
    truth = float(outside.flagged(shifts[:, 0], np.array(chosen)).mean())
    rows = []
    for _ in range(studies):
        shifts = rng.standard_normal((trainings, 2))
        label, people, scores = home.drawn(rng, shifts)
        thresholds = [operating_point.choose(rule, label == 1, score) for score in scores]
        without = [operating_point.chosen_without(rule, label == 1, score, people) for score in scores]
        label, people, scores = outside.drawn(rng, shifts)
        counts, choices = (
            np.stack([of(label == 1, *each) for each in zip(scores, chosen, strict=True)])
            for of, chosen in ((operating_point.counted, thresholds), (operating_point.choice, without))
        )
        low, high = operating_point.bounds(counts, people, ("invented", "out"), choices)[:, 0]
        rows.append(((low, high), truth))
    return covered(iter(rows))


FOLDS = 5


def folds(name: str, patients: int, trainings: int, studies: int, seed: int = 0) -> Covered:
    """Return the coverage of the score at home over five folds of its patients, each with a model of its own."""
    metric, rng = metric_of(name), np.random.default_rng([seed, patients, trainings])
    hospital = Hospital("a", patients)
    truth, rows = hospital.truth(name), []
    for _ in range(studies):
        label, people, probability = hospital.drawn(rng, rng.standard_normal((trainings * FOLDS, 2)))
        fold = people % FOLDS
        of_trainings = []
        for seed_, models in enumerate(probability.reshape(trainings, FOLDS, -1)):
            own = models[fold, np.arange(len(fold))]
            value, influence = metric.over_folds(label, np.stack([1 - own, own], 1), fold)
            of_trainings.append(estimates.single(value, influence, people, ("invented", "a"), seed_, metric.scale))
        rows.append((estimates.over_trainings(of_trainings).bounded(metric.ends)[:2], truth))
    return covered(iter(rows))


# ---- verdicts


class Invented(Dataset):
    """Invented images, for the names of their classes."""

    name = "invented"
    classes: tuple[str, ...] = ("healthy", "sick")

    def card(self) -> Card:
        return Card("Invented", "1", "nowhere", "CC0", "nobody")


class Simulated(Estimates):
    """The estimates of a study without files: the scores at each site are given."""

    def __init__(self, names: Names, metrics: Mapping[str, Metric], sites: Mapping[Any, Estimate], blind: Any) -> None:
        self.names = names
        self.metrics = dict(metrics)
        self.left_out = set()
        self.__dict__["sites"] = dict(sites)
        self.blind = blind

    def _blind(self, condition: Any, site: str, metric: Metric, classes: int) -> Estimate:
        if metric.name in effects.UNMOVED:
            return super()._blind(condition, site, metric, classes)
        return self.blind[site]


class Trial:
    """A study of hospitals inside and outside, with one inference, and conditions of which none is better."""

    def __init__(self, inside: Sequence[Any], outside: Sequence[Any], headline: str, trainings: int) -> None:
        self.hospitals = [("internal", one) for one in inside] + [("external", one) for one in outside]
        study = Study.model_validate(
            {
                "title": "A trial",
                "dataset": Invented(),
                "partition": {"internal": [one.name for one in inside], "external": [one.name for one in outside]},
                "model": "mlp",
                "training": {"rounds": 1},
                "runs": [{"algorithm": "fedavg"}],
                "seeds": list(range(trainings)),
                "inferences": ["source"],
                "metrics": [headline],
                "headline": headline,
                "figures": [],
            }
        )
        self.plan = Plan("trial", Path(tempfile.gettempdir()) / "trial.yaml", "paper", study)
        self.names = Names(self.plan)
        self.metric = metric_of(headline)
        self.trainings = trainings

    def findings(self, rng: np.random.Generator) -> Findings:
        """Return the numbers of one such study, through the table that a page is made of."""
        shifts = rng.standard_normal((self.trainings, 2))
        (condition,), (inference,) = self.names.conditions, self.plan.inferences
        sites, blind, known = {}, {}, {}
        for role, one in self.hospitals:
            name, (label, people, probability) = one.name, one.drawn(rng, shifts)
            score = _over_trainings(self.metric, label, people, probability, name)
            level = (condition, role, name, inference, self.metric.name)
            shares = np.bincount(label, minlength=2) / len(label)
            guess = np.tile(shares, (len(label), 1))
            sites[level] = score
            blind[name] = estimates.of_metric(self.metric, label, guess, people, ("invented", name))
            about = {"n": len(label), "chance": self.metric.chance(shares)}
            known[level] = about | {"majority": self.metric.value(label, guess)}
        study = Simulated(self.names, {self.metric.name: self.metric}, sites, blind)
        scores = (effects.at_site(study, level) | about for level, about in known.items())
        return Findings(self.names, Numbers([*scores, *effects.rows(study)]))

    def said(self, studies: int, seed: int = 0) -> dict[str, float]:
        """Return how often each word is said, as shares of the studies."""
        rng = np.random.default_rng([seed, self.trainings])
        words = []
        for _ in range(studies):
            found = self.findings(rng)
            words.append(verdict(found, found.conditions[0]).word.value)
        return {word: words.count(word) / studies for word in ("holds up", "loses", "cannot tell")}


def trial(patients: int, right: tuple[float, float], sites: tuple[int, int], trainings: int, images: int = 1) -> Trial:
    """Return a study of hospitals of so many patients, with these shares of right images at home and outside."""
    inside = [Right(f"in{k}", patients, right[0], images) for k in range(sites[0])]
    outside = [Right(f"out{k}", patients, right[1], images) for k in range(sites[1])]
    return Trial(inside, outside, "accuracy", trainings)


def failing(patients: int, trainings: int) -> Trial:
    """Return a study of five hospitals outside, of which one loses 20 points and four lose none."""
    inside = [Right(f"in{k}", 2 * patients, 0.9, 3) for k in range(3)]
    outside = [Right(f"out{k}", patients, 0.7 if k == 0 else 0.9, 3) for k in range(5)]
    return Trial(inside, outside, "accuracy", trainings)


# ---- tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


TRAININGS = (1, 3, 5)


def cell(shares: Iterable[Covered]) -> str:
    """Return the shares with each number of trainings, as a cell."""
    return ", ".join(share.text for share in shares)


def decided(words: Mapping[str, float]) -> str:
    """Return how often a study holds up and how often it loses, as a cell."""
    return f"{100 * words['holds up']:.1f} / {100 * words['loses']:.1f}"


def tables(studies: int) -> Iterator[str]:
    """Yield the tables, each with a line that says what it is."""
    some = max(studies // 3, 50)
    yield "In percent with one, three and five trainings; nominal is 95. One training says little about the method.\n"
    metrics: tuple[str, ...] = ("accuracy", "balanced_accuracy", "auc", "brier")
    cells = [
        [str(n), *(cell(levels(metric, n, k, studies) for k in TRAININGS) for metric in metrics)]
        for n in (10, 30, 100, 500)
    ]
    yield table(["level; patients", *metrics], cells)
    cells = []
    for images, n in itertools.product((1, 5), (5, 10, 20, 50)):
        both = zip(*(near_the_end(n, k, images, studies) for k in TRAININGS), strict=True)
        cells.append([f"{n}, {images}", *map(cell, both)])
    yield table(["patients, images of each", "89 % right outside", "the loss from 99 % at home"], cells)
    cells = []
    for metric, n in itertools.product(("accuracy", "auc"), (30, 100)):
        found = [differences(metric, n, k, some) for k in TRAININGS]
        cells.append([f"{metric}, {n}", *(cell(one[what] for one in found) for what in DIFFERENCES)])
    yield table(["difference; patients a site", *DIFFERENCES], cells)
    cells = [[f"{n}, {n}", cell(carried(n, k, studies) for k in TRAININGS)] for n in (30, 100)]
    yield table(["patients at home, outside", "sensitivity outside, threshold for 90 % specificity at home"], cells)
    metrics = ("auc", "accuracy")
    cells = [
        [str(n), *(cell(folds(metric, n, k, studies) for k in TRAININGS) for metric in metrics)] for n in (30, 40, 100)
    ]
    yield table(["five folds by patient, at home; patients", *metrics], cells)
    cells = [
        [str(n), *(cell(dice(n, k, missed, studies) for k in TRAININGS) for missed in (0.1, 0.0))]
        for n in (5, 10, 30, 100)
    ]
    yield table(["mean Dice; patients", "10 % missed", "0 % missed"], cells)
    shares = ((0.99, 0.89), (0.9, 0.8), (0.9, 0.9), (0.99, 0.99))
    cells = [
        [str(n), *(decided(trial(n, right, (3, 2), 3).said(some)) for right in shares)] for n in (5, 10, 20, 50, 200)
    ]
    heads = tuple(f"{100 * home:.0f} % at home, {100 * out:.0f} % outside" for home, out in shares)
    yield table(["holds up / loses, margin 5 points; patients a site", *heads], cells)
    cells = [[str(n), decided(failing(n, 3).said(some))] for n in (30, 100, 400)]
    yield table(["holds up / loses; patients a site", "one of five outside loses 20 points"], cells)


def printed(tables: Iterable[str], begin: str = "") -> None:
    """Print tables as they are made; then write them into docs/coverage.md between `begin` and END, if it is given."""
    made = []
    for text in tables:
        print(text, flush=True)
        made.append(text)
    if begin:
        before, after = PAGE.read_text(encoding="utf-8").split(begin)
        PAGE.write_text(f"{before}{begin}\n{chr(10).join(made)}\n{END}{after.split(END, 1)[1]}", encoding="utf-8")


def command(about: str | None, drawn: str, number: int, tables: Callable[[int], Iterable[str]], begin: str) -> None:
    """Print the tables of a number of what is drawn for each cell, or write them into the documentation.

    `about` describes the command, whose option of the name `drawn` is `number` where it is not given.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        f"--{drawn}", dest="number", metavar="N", type=int, default=number, help=f"{drawn} of each cell"
    )
    parser.add_argument("--write", action="store_true", help="write the tables into docs/coverage.md")
    chosen = parser.parse_args()
    printed(tables(chosen.number), begin if chosen.write else "")


if __name__ == "__main__":
    command(__doc__, "studies", 600, tables, BEGIN)
