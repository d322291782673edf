"""Division of pooled images among clients that no real site stands behind, with a skew of labels or of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.rng import stream

if TYPE_CHECKING:
    import numpy as np

TRIES = 1000
"""How often shares are drawn until every client has enough."""


class Deal(Frozen):
    """Images of some sites, pooled and dealt to clients: by shares of each class, by shares of all, or in equal parts.

    Shares come from a symmetric Dirichlet distribution over the clients (Yurochkin et al. 2019; Li et al. 2022). A
    patient is dealt as a whole, with the class of most of the patient's images, where the partition keeps patients
    together.
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
            raise UserError(
                "labels", "and sizes are two ways to deal", "drop one of the two; drop both for equal parts"
            )
        return self

    def clients(self, units: np.ndarray, label: np.ndarray, clients: int, seed: int) -> np.ndarray:
        """Return the number of the client, from 0, of each image: (n,) int64.

        `units` (n,) are the patients, or what else stays together, and `label` (n,) the classes. Units in random order
        are cut at the running sums of the shares, rounded down. Raises UserError where some client always gets too few.
        """
        import numpy as np

        names, member = np.unique(units.astype(str), return_inverse=True)
        counts = np.zeros((len(names), int(label.max(initial=0)) + 1))
        np.add.at(counts, (member, label), 1)
        kinds = counts.argmax(1) if self.labels else np.zeros(len(names), dtype=np.int64)
        for attempt in range(TRIES if len(names) >= clients * self.least else 0):
            rng = stream(seed, "deal", attempt)
            client = np.empty(len(names), dtype=np.int64)
            for kind in np.unique(kinds):
                order = rng.permutation(np.flatnonzero(kinds == kind))
                # 1e-9: a sum of shares that is meant to be whole may lie just below
                cuts = (np.cumsum(self._shares(rng, clients))[:-1] * len(order) + 1e-9).astype(int)
                for k, part in enumerate(np.split(order, cuts)):
                    client[part] = k
            # with few images or a small concentration most draws leave some client almost empty
            if np.bincount(client, minlength=clients).min() >= self.least:
                return client[member]
        problem = f"{len(names):,} patients or images give no {clients} clients of at least {self.least}"
        raise UserError("partition.deal", problem, "lower `least`, raise the concentration, or name fewer clients")

    def _shares(self, rng: np.random.Generator, clients: int) -> np.ndarray:
        """Return the clients' shares, which add up to 1."""
        import numpy as np

        concentration = self.labels or self.sizes
        return rng.dirichlet(np.full(clients, concentration)) if concentration else np.full(clients, 1 / clients)

    @property
    def words(self) -> str:
        """How images are dealt, for people."""
        how = f"shares of each class from Dirichlet({self.labels:g})" if self.labels else "equal parts"
        how = f"shares of all images from Dirichlet({self.sizes:g})" if self.sizes else how
        return f"images of {', '.join(self.sites)} dealt to the clients in {how}"
