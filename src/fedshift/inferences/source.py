"""Prediction with training statistics."""

from typing import Any

from pydantic import Field

from ._base import Inference


class Source(Inference):
    """Ordinary evaluation: batch norm uses the running statistics of training, and batches do not matter."""

    adapts = False
    batches_matter = False
    batch_size: int = Field(256, ge=1, description="images a batch; no effect on the result")

    def score_columns(self) -> dict[str, Any]:
        return {"momentum": None, "batch_size": None, "order": None}
