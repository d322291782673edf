"""Invented results that the tests of single figures share: those on which the contract draws figures."""

from typing import Any

from fedshift.contract.figures import moment, row
from fedshift.contract.figures import results_of as made

__all__ = ["made", "moment", "row", "tsmobn"]


def tsmobn(momentum: float = 0.9, batch_size: int = 32, order: int = 0) -> dict[str, Any]:
    """The columns of an inference."""
    settings = {"momentum": momentum, "batch_size": batch_size, "order": order}
    return {"inference": "tsmobn", "shown": f"TsmoBN {list(settings.values())}", **settings}
