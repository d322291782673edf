"""Clients cut from one site: parts of its training samples, after its test samples were held out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.rng import stream

if TYPE_CHECKING:
    import numpy as np


class Cut(Frozen):
    """How many clients are made of each internal site, and how much of its training samples each of them has."""

    parts: int = Field(ge=2, le=1000, description="number of equal parts of the training samples of each internal site")
    clients: int = Field(
        ge=1,
        description="number of clients made of each internal site: NAME-1, NAME-2, ..., each with one of the parts; "
        "the other parts are left out",
    )

    def require(self, clients: tuple[str, ...]) -> None:
        """Raise UserError if the names of clients are not NAME-1, NAME-2, ... of some sites, all of them."""
        if self.clients > self.parts:
            raise UserError("cut", f"{self.clients} clients of {self.parts} parts", "ask for fewer clients")
        odd = [client for client in clients if not uncut(client)]
        if odd:
            problem = f"{odd[0]!r} is not a client of a site that is cut"
            raise UserError("internal", problem, f"name NAME-1 to NAME-{self.clients} for each site NAME")
        wanted = {self.client(site, k) for site in map(uncut, clients) for k in range(self.clients)}
        wrong = sorted(set(clients) ^ wanted)
        if wrong:
            problem = f"{wrong[0]!r} is {'missing' if wrong[0] in wanted else 'no client'} where each site is cut"
            raise UserError("internal", problem, f"name NAME-1 to NAME-{self.clients} for each site NAME")

    @staticmethod
    def client(site: str, k: int) -> str:
        """Return the name of the client with the part `k`, from 0."""
        return f"{site}-{k + 1}"

    def share_out(self, site: str, split: np.ndarray, unit: np.ndarray, label: np.ndarray, seed: int) -> np.ndarray:
        """Return the part, from 0, of each sample of a site (n,), given its split, its unit and its label (n,).

        Training and validation samples are cut into `parts`, and test samples into `clients`, so that all clients of a
        site together have all of its test samples, however many they are. Units (patients, or samples) stay whole, and
        numbers of units, also of a class, differ by at most one. Raises UserError for fewer units than parts.
        """
        import numpy as np

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
    """Return the name of the site that a client was cut from."""
    return client.rpartition("-")[0]
