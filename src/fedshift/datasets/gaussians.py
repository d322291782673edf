"""Two Gaussian classes at two clients, with correlated features in half of client2: the synthetic study of FedBN."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from ..core.errors import UserError
from ..core.rng import stream
from ..io.tables import read_table, write_table
from ._base import Card, Dataset, Opened, listed

FILE = "gaussians.csv"
SITES = ("client1", "client2")
FEATURES = 10
COLUMNS = tuple(f"x{k}" for k in range(1, FEATURES + 1))
AGAIN = "delete it and start again: it will be drawn again"


class Gaussians(Dataset):
    """Vectors of 10 numbers: class 0 ~ N(-1, S), class 1 ~ N(+1, S); S = I at client1, I or correlated at client2.

    Source: FedBN, appendix F, which states neither the correlated S nor the number of samples. This project's
    decisions: the correlated S has ones on its diagonal and `correlation` elsewhere, and each client has 1,000 samples.
    At client2, S is I for half of the samples of each class and correlated for the other half.

    With correlations of equal sign the optimal rule is the sign of the sum. Its error is Phi(-sqrt(10 / (1 + 9
    correlation))): 0.08% for S = I, and 8.9% for correlated samples with correlation 0.5, so that no network reaches
    the published 100%. With `signs: alternating`, correlations are positive between features of the same parity and
    negative between others. They then cancel in the sum, and the error of correlated samples is
    Phi(-sqrt(10 / (1 - correlation))), 0.0004%.

    The samples are drawn on demand and depend on `seed` alone, so no miniature is needed.
    """

    site_kind = "client"
    sample_noun = "vector"
    later_fields: ClassVar[frozenset[str]] = frozenset({"signs"})
    shape: ClassVar[tuple[int, ...] | None] = (FEATURES,)
    classes: tuple[str, ...] = Field(
        ("minus", "plus"), min_length=2, max_length=2, description="names of the labels 0 (mean -1) and 1 (mean +1)"
    )
    samples: int = Field(1000, ge=8, multiple_of=4, description="samples of each client, half of them of each class")
    correlation: float = Field(
        0.5, ge=0, lt=1, description="correlation of any two features, in the correlated half of client2"
    )
    signs: Literal["equal", "alternating"] = Field(
        "equal", description="signs of these correlations: all positive, or negative between odd and even features"
    )
    seed: int = Field(0, ge=0, description="seed of the samples")

    def card(self) -> Card:
        signs = " with alternating signs" if self.signs == "alternating" else ""
        return Card(
            title="Two Gaussian classes at two clients",
            version=f"{self.samples} samples a client, correlation {self.correlation:g}{signs}, seed {self.seed}",
            source="drawn by fedshift",
            licence="that of fedshift",
            citation="Li et al. 2021 (FedBN, ICLR), appendix F, for the distributions",
            caveat="Synthetic by design, as published; the paper states neither correlation nor number of samples.",
        )

    def download(self, raw: Path, mirror: Path | None) -> None:
        """Draw the samples: one table with the columns site, label, x1 ... x10. Every call draws the same."""
        import pandas as pd

        label = np.repeat([0, 1], self.samples // 2)
        sign = np.ones(FEATURES)
        if self.signs == "alternating":
            sign[1::2] = -1
        tables = []
        for site in SITES:
            rng = stream(self.seed, "gaussians", site)
            independent = rng.normal(size=(self.samples, FEATURES))
            common = rng.normal(size=(self.samples, 1))
            # only every second sample of the second client is correlated, as in the appendix
            share = self.correlation * ((site == SITES[1]) & (np.arange(self.samples) % 2 == 1))[:, None]
            x = (2 * label - 1)[:, None] + np.sqrt(1 - share) * independent + np.sqrt(share) * common * sign
            tables.append(pd.DataFrame(x, columns=list(COLUMNS)).assign(site=site, label=label))
        write_table(raw / FILE, pd.concat(tables)[["site", "label", *COLUMNS]])

    def open(self, raw: Path) -> Opened:
        import pandas as pd

        path = raw / FILE
        table = read_table(path, columns=("site", "label", *COLUMNS))
        if table["site"].tolist() != [site for site in SITES for _ in range(self.samples)]:
            problem = f"has {len(table)} rows, expected {self.samples} of {SITES[0]}, then as many of {SITES[1]}"
            raise UserError(path, problem, AGAIN)
        wrong = ~table["label"].isin([0, 1])
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            raise UserError(f"{path}, row {at + 2}", f"label is {table['label'][at]}, expected 0 or 1", AGAIN)
        numbers = table[list(COLUMNS)].apply(pd.to_numeric, errors="coerce").to_numpy()
        if not np.isfinite(numbers).all():
            at = int((~np.isfinite(numbers)).any(axis=1).argmax())
            raise UserError(f"{path}, row {at + 2}", f"expected {FEATURES} numbers, {COLUMNS[0]} to x{FEATURES}", AGAIN)
        vectors = numbers.astype(np.float32)
        names = [f"{site}/{n:05}" for site in SITES for n in range(self.samples)]
        return Opened(listed(names, table["site"], table["label"].to_numpy()), lambda i: vectors[i])
