"""Two claims of FedBN's theory, counted from what the figures `ntk` and `toy` draw.

`make reproduce STUDY=fedbn-theory` writes docs/reproductions/fedbn-fig9/trends-figures.csv, in the columns of a study's
trends. It needs no data.
"""

from __future__ import annotations

import csv
from pathlib import Path

from fedshift.figures import ntk, toy

OUT = Path(__file__).parent / "reproductions" / "fedbn-fig9" / "trends-figures.csv"
HEAD = (
    *("claim", "sentence", "held", "mean_difference", "se", "seeds", "by", "within", "sites_for", "sites", "doubt"),
    "reason",
)


def smallest_eigenvalues() -> list[str]:
    """Return the row of corollary 4.6: random draws in which the smallest eigenvalue of FedBN is no smaller."""
    draws = ntk.NTK().draws
    count = sum(ntk.holds(*ntk.eigenvalues(*ntk.sample(n))) for n in range(draws))
    claim = "Keeping only the blocks of one client leaves the smallest eigenvalue as large or larger"
    return row(claim, f"{count} of {draws} random draws, figure ntk of the page", count, draws)


def toy_errors() -> list[str]:
    """Return the row of figure 2: the error at each client with gamma kept local, against both averaged."""
    clients = [toy.client(k) for k in range(len(toy.STDS))]
    spots = zip(clients, toy.averaged(clients), strict=True)
    errors = [[float(toy.error(w, gamma, *data)[0]) for w, gamma in pair] for data, pair in spots]
    words = [f"{local:.2f} against {both:.2f} at client {k}" for k, (local, both) in enumerate(errors, 1)]
    count = sum(local < both for local, both in errors)
    claim = "With w averaged and gamma local, the error is below that with both averaged at both clients"
    return row(claim, f"{', '.join(words)}, figure toy of the page", count, len(errors))


def row(claim: str, sentence: str, count: int, of: int) -> list[str]:
    """Return a row of trends: the claim holds where it does in all cases."""
    return [claim, sentence, "yes" if count == of else "no", *[""] * 5, str(count), str(of), "", ""]


def main() -> None:
    """Write both rows."""
    with OUT.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, smallest_eigenvalues(), toy_errors()])
    print(f"wrote {OUT.name}")
