"""Random splits of a site: of single samples, of samples with equal shares of each class, and of whole groups.

Each function takes the label of each sample (n,), its group (n,) as numbers from 0, the share of each split, and seed
and site, which name the random stream. It returns the split of each group. `folds` returns the fold of each instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..core.errors import UserError
from ..core.rng import seed_of, stream

Shares = dict[str, float]
Draw = Callable[[np.ndarray, np.ndarray, Shares, int, str], np.ndarray]
"""One of the functions that split a site."""
TRIES = 512
"""Number of random splits of groups, of which the best is taken."""


def exact(label: np.ndarray, group: np.ndarray, shares: Shares, seed: int, site: str) -> np.ndarray:
    """Split n single samples at random: floor(share n) of them test and validate, and the others train."""
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
    train. Raises UserError for a class with too few samples.
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
    """Split whole groups: of TRIES random splits, take the one whose label counts are closest to the shares."""
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
    best = ordered
    least = np.inf
    member = np.eye(len(shares))
    for _ in range(TRIES):
        draw = ordered[rng.permutation(len(counts))]
        reached = member[draw].T @ counts
        cost = np.abs(reached - goal).sum()
        if cost < least:
            best = draw
            least = cost
    return np.array(list(shares), dtype=object)[best]


def folds(label: np.ndarray, group: np.ndarray, number: int, seed: int, site: str) -> np.ndarray:
    """Return the fold of each group, from 1 to `number`: equally many groups a fold, and as alike in classes as can be.

    Groups are ranked by their samples of the rarest class, then of the next one, and each fold gets one of every
    `number` groups in this order. So the groups with most samples of the rarest class are in different folds. Of TRIES
    random draws, the one whose counts of samples of each class differ least between folds is taken.
    """
    counts = np.zeros((group.max() + 1, label.max() + 1))
    np.add.at(counts, (group, label), 1)
    rng = stream(seed, "folds", site)
    shuffled = rng.permutation(len(counts))
    common_first = np.argsort(-counts.sum(0), kind="stable")
    # The last key of lexsort is the first to count.
    ranked = shuffled[np.lexsort(-counts[shuffled][:, common_first].T)]
    blocks = np.tile(np.arange(number), (math.ceil(len(counts) / number), 1))
    best = np.empty(len(counts), dtype=int)
    least = np.inf
    for _ in range(TRIES):
        fold = np.empty(len(counts), dtype=int)
        fold[ranked] = rng.permuted(blocks, axis=1).ravel()[: len(counts)]
        reached = np.stack([counts[fold == k].sum(0) for k in range(number)])
        cost = np.abs(reached - counts.sum(0) / number).sum()
        if cost < least:
            best = fold
            least = cost
    return best + 1
