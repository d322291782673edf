"""Divisions of samples: random splits of a site into train, val and test, and clients that are no real sites.

A split is of single samples, of samples with equal shares of each class, or of whole groups. Each of these functions
takes the label of each sample (n,), its group (n,) as numbers from 0, the share of each split, and seed and site, which
name the random stream. It returns the split of each group; `folds` returns the fold of each instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.rng import seed_of, stream

Shares = dict[str, float]
Draw = Callable[[np.ndarray, np.ndarray, Shares, int, str], np.ndarray]
"""Type of the functions that split a site: (label, group, shares, seed, site) -> the split of each group."""
TRIES = 512
"""Number of random divisions of groups that are tried; the best one is used."""
DEALS = 1000
"""The most attempts to draw shares that give every client enough images."""


def exact(label: np.ndarray, group: np.ndarray, shares: Shares, seed: int, site: str) -> np.ndarray:
    """Split n single samples at random: floor(share n) of them test, floor(share n) validate, and the others train.

    Each sample is a group of its own; `label` is not used. `shares` has the share of each split by its name, and `seed`
    and `site` name the random stream. Returns the split of each group, (n,) names.
    """
    n = len(group)
    order = stream(seed, "split", site).permutation(n)
    split = np.full(n, "train", dtype=object)
    start = 0
    for name in ("test", "val"):
        # 1e-9: 0.29 * 100 is 28.999999999999996, and means 29
        size = int(shares.get(name, 0) * n + 1e-9)
        split[order[start : start + size]] = name
        start += size
    return split


def stratified(label: np.ndarray, group: np.ndarray, shares: Shares, seed: int, site: str) -> np.ndarray:
    """Split n single samples at random, with the same shares of each class.

    Drawn by scikit-learn's StratifiedShuffleSplit: ceil(share n) samples test, ceil(share n) validate, the others
    train. Each sample is a group of its own, and `label` its class. `seed` and `site` name the random stream. Returns
    the split of each group, (n,) names. Raises UserError for a class with too few samples.
    """
    from sklearn.model_selection import StratifiedShuffleSplit

    n = len(group)
    split = np.full(n, "train", dtype=object)
    left = np.arange(n)
    label = label[np.unique(group, return_index=True)[1]]
    for name in ("test", "val"):
        if name not in shares:
            continue
        size = math.ceil(shares[name] * n - 1e-9)
        draw = StratifiedShuffleSplit(1, test_size=size, random_state=seed_of(seed, "split", site, name) % 2**32)
        try:
            remaining, drawn = next(draw.split(left, label[left]))
        except ValueError as error:
            problem = f"cannot be split by class: {error}"
            remedy = "set by: sample, or make the site external"
            raise UserError(f"partition: site {site!r}", problem, remedy) from error
        split[left[drawn]] = name
        left = left[remaining]
    return split


def balanced(label: np.ndarray, group: np.ndarray, shares: Shares, seed: int, site: str) -> np.ndarray:
    """Return the split of each group, (groups,) names: samples of a group, such as a patient, stay together.

    Of TRIES random divisions it is the one whose counts of labels come closest to `shares`, the share of the samples by
    name of the split. `label` and `group` give the class and the group of each sample, (n,), as whole numbers from 0.
    `seed` and `site` name the random stream.
    """
    counts = np.zeros((group.max() + 1, label.max() + 1))
    np.add.at(counts, (group, label), 1)
    share = np.array(list(shares.values()))
    goal = share[:, None] * counts.sum(0)
    rng = stream(seed, "split", site)
    cuts = (np.cumsum(share)[:-1] * len(counts)).round().astype(int)
    sizes = np.diff([0, *cuts, len(counts)])
    # no split stays without a group: it gets one of the largest split
    for empty in np.flatnonzero(sizes < 1):
        sizes[empty] += 1
        sizes[sizes.argmax()] -= 1
    ordered = np.repeat(np.arange(len(shares)), sizes)
    columns = np.ascontiguousarray(counts.T)

    def cost(draw: np.ndarray) -> float:
        # Sums of whole numbers, which are exact in any order: the split does not depend on how they are added.
        reached = np.stack([np.bincount(draw, column, len(shares)) for column in columns], axis=1)
        return float(np.abs(reached - goal).sum())

    best = min((rng.permutation(ordered) for _ in range(TRIES)), key=cost)
    return np.array(list(shares), dtype=object)[best]


def folds(label: np.ndarray, group: np.ndarray, number: int, seed: int, site: str) -> np.ndarray:
    """Return the fold of each group, from 1 to `number`: equally many groups a fold, with classes as alike as possible.

    `label` and `group` give the class and the group of each sample, (n,). Groups are ranked by their samples of the
    rarest class, then of the next one, and each fold gets one of every `number` groups in this order. So the groups
    with most samples of the rarest class are in different folds. Of TRIES random draws, the one whose counts of samples
    of each class differ least between folds is taken.
    """
    counts = np.zeros((group.max() + 1, label.max() + 1))
    np.add.at(counts, (group, label), 1)
    rng = stream(seed, "folds", site)
    shuffled = rng.permutation(len(counts))
    common_first = np.argsort(-counts.sum(0), kind="stable")
    # The last key of lexsort is the first to count.
    ranked = shuffled[np.lexsort(-counts[shuffled][:, common_first].T)]
    blocks = np.tile(np.arange(number), (math.ceil(len(counts) / number), 1))

    def draw() -> np.ndarray:
        fold = np.empty(len(counts), dtype=int)
        fold[ranked] = rng.permuted(blocks, axis=1).ravel()[: len(counts)]
        return fold

    def cost(fold: np.ndarray) -> float:
        reached = np.stack([counts[fold == k].sum(0) for k in range(number)])
        return float(np.abs(reached - counts.sum(0) / number).sum())

    return min((draw() for _ in range(TRIES)), key=cost) + 1


class Cut(Frozen):
    """Rule by which each internal site is cut into several clients with equal parts of its training samples."""

    parts: int = Field(ge=2, le=1000, description="number of equal parts of the training samples of each internal site")
    clients: int = Field(
        ge=1,
        description="number of clients made of each internal site: NAME-1, NAME-2, ..., each with one of the parts; "
        "the other parts are left out",
    )

    def require(self, clients: tuple[str, ...]) -> None:
        """Raise UserError unless `clients` are NAME-1, NAME-2, ... for each site NAME, with a part for each."""
        if self.clients > self.parts:
            raise UserError("cut", f"{self.clients} clients cannot be made of {self.parts} parts", "raise parts")
        odd = [client for client in clients if not uncut(client)]
        if odd:
            problem = f"{odd[0]!r} is not a client of a site that is cut"
            raise UserError("internal", problem, f"write NAME-1 to NAME-{self.clients} in place of each site NAME")
        wanted = {self.client(site, k) for site in map(uncut, clients) for k in range(self.clients)}
        wrong = sorted(set(clients) ^ wanted)
        if wrong:
            problem = f"{wrong[0]!r} is {'missing' if wrong[0] in wanted else 'no client'} where each site is cut"
            raise UserError("internal", problem, f"write NAME-1 to NAME-{self.clients} in place of each site NAME")

    @staticmethod
    def client(site: str, k: int) -> str:
        """Return the name of the client of `site` that gets the part `k`, counted from 0."""
        return f"{site}-{k + 1}"

    def share_out(self, site: str, split: np.ndarray, unit: np.ndarray, label: np.ndarray, seed: int) -> np.ndarray:
        """Return the part, from 0, of each sample of a site (n,).

        `split`, `unit` (patient or sample) and `label` are those of each sample (n,). Training and validation samples
        are cut into `parts`, and test samples into `clients`, so that all clients of a site together have all of its
        test samples. Units stay whole, and the numbers of units of two parts, also of one class, differ by at most one.
        Raises UserError for fewer units than parts.
        """
        part = np.zeros(len(split), dtype=np.int64)
        for name in sorted(set(split)):
            rows = np.flatnonzero(split == name)
            count = self.clients if name == "test" else self.parts
            names, first, member = np.unique(unit[rows], return_index=True, return_inverse=True)
            if len(names) < count:
                problem = f"site {site!r} has {len(names)} samples or patients of the split {name}, too few for {count}"
                raise UserError("partition: cut", problem, "ask for fewer parts or clients")
            order = stream(seed, "cut", name, site).permutation(len(names))
            # a stable sort by class keeps the random order within it; parts then get classes in turn
            order = order[np.argsort(label[rows][first][order], kind="stable")]
            of_unit = np.empty(len(names), dtype=np.int64)
            of_unit[order] = np.arange(len(names)) % count
            part[rows] = of_unit[member]
        return part


def uncut(client: str) -> str:
    """Return the name of the site that a client was cut from: NAME of NAME-1; '' for a name without a hyphen."""
    return client.rpartition("-")[0]


class Deal(Frozen):
    """Rule by which images of some sites are pooled and dealt to artificial clients, with label or size skew or none.

    Clients get shares of each class (`labels`), shares of all images (`sizes`), or equal parts. Shares come from a
    symmetric Dirichlet distribution over the clients (Yurochkin et al. 2019; Li et al. 2022). A patient is dealt as a
    whole, with the class of most of the patient's images, where the partition keeps patients together.
    """

    sites: tuple[str, ...] = Field(min_length=1, description="sites whose images are pooled and dealt to the clients")
    labels: float | None = Field(
        None,
        ge=0.01,
        le=1e6,
        description="label skew: concentration of the Dirichlet distribution of the clients' shares of each class; at "
        "0.1 most clients have few classes, at 100 all are alike",
    )
    sizes: float | None = Field(
        None,
        ge=0.01,
        le=1e6,
        description="quantity skew: concentration of the Dirichlet distribution of the clients' shares of all images",
    )
    least: int = Field(
        10, ge=1, description="fewest patients, or images, of a client; shares are drawn anew until each has as many"
    )

    @model_validator(mode="after")
    def _one_skew(self) -> Deal:
        if self.labels and self.sizes:
            remedy = "drop one of the two; drop both for equal parts"
            raise UserError("labels", "and sizes are two ways to deal", remedy)
        return self

    def clients(self, units: np.ndarray, label: np.ndarray, clients: int, seed: int) -> np.ndarray:
        """Return the number of the client, from 0, of each image: (n,) int64.

        `units` (n,) are the ids of what stays together (patients or images), `label` (n,) the classes, and `clients` is
        the number of clients. Units in random order are cut at the running sums of the shares, rounded down. Raises
        UserError if in each of DEALS draws some client gets too few.
        """
        concentration = self.labels or self.sizes
        names, member = np.unique(units.astype(str), return_inverse=True)
        counts = np.zeros((len(names), int(label.max(initial=0)) + 1))
        np.add.at(counts, (member, label), 1)
        kinds = counts.argmax(1) if self.labels else np.zeros(len(names), dtype=np.int64)
        for attempt in range(DEALS if len(names) >= clients * self.least else 0):
            rng = stream(seed, "deal", attempt)
            client = np.empty(len(names), dtype=np.int64)
            for kind in np.unique(kinds):
                order = rng.permutation(np.flatnonzero(kinds == kind))
                shares = np.full(clients, 1 / clients)
                if concentration:
                    shares = rng.dirichlet(np.full(clients, concentration))
                # 1e-9: a sum of shares that is meant to be whole may lie just below
                cuts = (np.cumsum(shares)[:-1] * len(order) + 1e-9).astype(int)
                for k, part in enumerate(np.split(order, cuts)):
                    client[part] = k
            # with few images or a small concentration most draws leave some client almost empty
            if np.bincount(client, minlength=clients).min() >= self.least:
                return client[member]
        problem = f"{len(names):,} patients or images cannot fill {clients} clients with at least {self.least}"
        raise UserError("partition.deal", problem, "lower `least`, raise the concentration, or name fewer clients")

    @property
    def words(self) -> str:
        """How images are dealt to the clients, as a text for reports."""
        how = f"shares of each class from Dirichlet({self.labels:g})" if self.labels else "equal parts"
        how = f"shares of all images from Dirichlet({self.sizes:g})" if self.sizes else how
        return f"images of {', '.join(self.sites)} dealt to the clients in {how}"
