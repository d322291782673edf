"""The base of all ways to run batch normalisation at test time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ..core.frozen import Frozen
from ..core.registry import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn


class Personalise(Frozen, allow_inf_nan=False):
    """SGD steps on labelled images of a site before it is predicted, as Per-FedAvg asks for.

    Every step takes the same images of the site, drawn once: `val`, an internal site's validation images and, where a
    site has none, as `test_excluded`; `test_excluded`, test images, which are then not scored; `test_included`, test
    images that are scored too, which leaks labels and is what UniFed describes. BN uses the batch's statistics in
    these steps and keeps its running ones (our decision).
    """

    source: Literal["val", "test_excluded", "test_included"] = Field("val", description="labelled images to adapt to")
    steps: int = Field(1, ge=1, description="SGD steps")
    batch_size: int = Field(32, ge=2, description="labelled images")
    lr: float = Field(0.01, gt=0, description="rate of the steps; for Per-FedAvg, as the alpha of training")
    seed: int = Field(0, ge=0, description="of the draw of images, the same for all runs")


class Inference(Plugin):
    """How a trained network predicts one site."""

    kind: ClassVar[str] = "inference"
    batch_size: int = Field(32, ge=1, description="images a batch")
    personalise: Personalise | None = Field(None, description="adapt to labelled images of the site first")
    client: str | None = Field(
        None,
        description="predict every site with this client's own tensors; by default each internal site with its own",
    )

    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> AbstractContextManager[Any]:
        """Entered once for each site, around all its batches. Leaves every parameter and buffer as it was.

        `batches` goes through the site's inputs, for inferences that look at all of them first.
        """
        return nullcontext()

    def settings(self) -> dict[str, Any]:
        """What `scores.csv` says of this inference: momentum, batch_size and order, None where without meaning."""
        return {"momentum": None, "batch_size": None, "order": None}
