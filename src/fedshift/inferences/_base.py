"""The base of inferences: ways to predict the images of a site, and steps on labelled images of it before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.registry import Plugin
from ..core.rng import keyed, stream
from ..core.spelling import counted

if TYPE_CHECKING:
    from torch import Tensor, nn


class Labelled(Protocol):
    """Labelled images of a site, fetched by batch."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray, /) -> tuple[Tensor, Tensor]:
        """Return the inputs (batch, ...) and labels (batch,) of the images at the positions `index`."""
        ...


def steps_on(
    model: nn.Module,
    images: Labelled,
    index: np.ndarray,
    parameters: Sequence[nn.Parameter],
    steps: int,
    lr: float,
    key: Sequence[object],
) -> None:
    """Train `parameters` of `model` in place by `steps` SGD steps of rate `lr`, each on all images at `index`.

    The loss is the cross-entropy with the labels. The model is left in training mode. Parameters that need no gradient
    stay as they are; `key` names the random stream of dropout.
    """
    import torch

    from ..nn.device import to_device
    from ..nn.features import cross_entropies

    device = next(model.parameters()).device
    optimiser = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=lr)
    model.train()
    with torch.enable_grad(), keyed(*key, device=device):
        for _ in range(steps):
            x, y = (to_device(tensor, device) for tensor in images.batch(index))
            optimiser.zero_grad()
            cross_entropies(model(x), y).mean().backward()
            optimiser.step()
    model.zero_grad()


class Personalise(Frozen, allow_inf_nan=False):
    """SGD steps on labelled images of a site before it is predicted, as Per-FedAvg asks for.

    Every step takes the same images of the site, drawn once. `source` says which: `val`, validation images of an
    internal site (a site without any is treated as `test_excluded`); `test_excluded`, test images, which are then not
    scored; `test_included`, test images that are scored too, which leaks labels and is what UniFed describes. Batch
    norm uses the batch's statistics in these steps and keeps its running statistics (our decision).
    """

    source: Literal["val", "test_excluded", "test_included"] = Field("val", description="labelled images to adapt to")
    steps: int = Field(1, ge=1, description="SGD steps")
    batch_size: int = Field(32, ge=2, description="labelled images")
    lr: float = Field(0.01, gt=0, description="learning rate of the steps; for Per-FedAvg, as the alpha of training")
    seed: int = Field(0, ge=0, description="seed of the draw of images, the same for all runs")

    def adapt(self, model: nn.Module, test: Labelled, val: Labelled, site: str) -> np.ndarray:
        """Take the steps on labelled images with all trainable parameters of `model`, in place.

        The model is left in training mode. `test` and `val` are the site's labelled test and validation images. Returns
        a mask (n,), bool, of the test images that must not be scored, since the model has seen their labels; all are
        False where `test_included` asks for the leak. Raises UserError for a site with a single image.
        """
        from ..nn.batchnorm import untracked

        images = val if self.source == "val" and len(val) else test
        index = stream(self.seed, "personalise", site).permutation(len(images))[: self.batch_size]
        if len(index) < 2:
            raise UserError(
                f"site {site!r}", f"has {len(index)} labelled images to adapt to, fewer than 2", "leave personalise out"
            )
        with untracked(model):
            key = self.seed, "personalise", site, "dropout"
            steps_on(model, images, index, list(model.parameters()), self.steps, self.lr, key)
        seen = np.zeros(len(test), dtype=bool)
        if images is test and self.source != "test_included":
            seen[index] = True
        return seen

    @property
    def title(self) -> str:
        """The labelled images that are used, and the settings of the steps, as a short text for tables."""
        settings = [f"steps {self.steps}", f"batch {self.batch_size}", f"lr {self.lr:g}", f"seed {self.seed}"]
        return ", ".join([self.source.replace("_", " "), *settings])

    def caveat(self, name: str) -> str:
        """Return the warning for reports that the inference `name` adapts to labelled images, and to how many."""
        leak = ", which are not scored, so that its gain is not over the same images"
        if self.source == "test_included":
            leak = ", and these images are scored too: it has seen their answers"
        return (
            f"{name} first takes {counted(self.steps, 'gradient step')} on up to "
            f"{self.batch_size} labelled images of the site{leak}. It is not comparable with what needs no labels."
        )


Predict = Callable[["Tensor"], "Tensor"]
"""A function from a batch of inputs (batch, ...) to its logits (batch, classes)."""

COUNT = "count_"
"""Prefix of the columns of predictions that hold what a method has counted at a site."""


@dataclass(frozen=True)
class Site:
    """The unlabelled images of one site, and what else a method may know there. A call begins a pass over the images.

    Attributes
    ----------
    batches : begins a pass over the inputs (batch, ...), in test order and without labels
    greys : the values of a black and of a white pixel as the network sees them, for each channel; None where unknown
    answer : the mean of what the internal sites computed for the method (see `Inference.at_client`), (n,); None where
        it asks for nothing
    counts : what the method counts at the site, by name, such as the images that it kept; reports show these numbers
    """

    batches: Callable[[], Iterator[Tensor]] = lambda: iter(())
    greys: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    answer: Tensor | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def __call__(self) -> Iterator[Tensor]:
        """Begin a pass over the site's inputs (batch, ...), without labels, in test order."""
        return self.batches()


class Inference(Plugin):
    """A way of predicting one site with a trained network: one class in one file of this folder.

    A method overrides `on_site`, a context manager that is entered once for each site and yields the function from a
    batch to its logits. Local variables of `on_site` are the state of a site: an optimiser, a memory of features, a
    teacher network. They are created again at every site, so that no site influences another.

    What the engine promises (`fedshift.engine.prediction`):

    - `model` is a copy of the trained network in evaluation mode, on the right device. A method may change anything in
      it: the copy is thrown away after the site, also after an error.
    - The yielded function is called once for each batch, in the order that `order` and `batch_size` ask for. Its answer
      is what is scored, so a method decides whether that comes from before or after its update. The last batch may be
      smaller, down to a single image.
    - Gradients are recorded in `on_site` and in the yielded function only if the class says `gradients = True`. Answers
      are detached.
    - Torch's default generators are seeded in the same way at every site, and are left as they were. For draws that
      depend on a setting use `fedshift.core.rng.torch_stream(self.seed, "a name")`.
    - Labels are never seen: `batches` yields inputs alone. (The steps on labelled images that users can ask for with
      `personalise` are taken before `on_site`, under any inference.)
    - `batches` is a `Site`: it also knows the grey levels of the inputs and what the internal sites computed for the
      method, and counts for the report, as in `batches.counts["kept"] += 5`.
    - A method that needs something of the federation says `asks = True` and overrides `at_client`.

    Import torch inside of `on_site`: the head of the workflow imports this module, and must not wait for torch. Fields
    are settings, with bounds and a description. A method to which batches matter declares `order: int | None =
    ORDERED`, since stored images may be sorted by class.
    """

    kind: ClassVar[str] = "inference"
    adapts: ClassVar[bool] = True
    """False for methods that use nothing of the tested site. Pages compare the baseline with the first that adapts."""
    gradients: ClassVar[bool] = False
    """True for methods that need gradients at test time; without gradients, predictions take less memory."""
    asks: ClassVar[bool] = False
    """True for methods that need a vector from each internal site after the training: see `at_client`."""
    asks_by_layer: ClassVar[bool] = False
    """True for methods that ask the internal sites once for each batch-norm layer: `at_client` is called again, and
    knows the mean of all earlier answers as `batches.answer`, until it returns an empty vector."""
    needs_one_network: ClassVar[bool] = False
    """True for methods that use the last layer of the network: an ensemble of networks has no single one."""
    batches_matter: ClassVar[bool] = True
    """False for methods that predict each image independently: the engine may take fewer images at once than
    `batch_size`."""
    batch_size: int = Field(32, ge=1, description="images a batch")
    personalise: Personalise | None = Field(None, description="adapt to labelled images of the site first")
    client: str | None = Field(
        None,
        description="predict every site with this client's own tensors; by default each internal site with its own",
    )
    network: Literal["own", "global"] = Field(
        "own",
        description="predict internal sites with their own tensors or personal networks, or with the global network, "
        "as external sites are",
    )
    external_bn: Literal["clients", "initial"] = Field(
        "clients",
        description="where batch norm stays with clients, that of the global network: the mean of the clients', or the "
        "initial one, which the server never updates",
    )
    order: int | None = Field(
        None, ge=0, description="seed of the test order; null keeps the stored order, which may be sorted"
    )

    @model_validator(mode="after")
    def _one_network(self) -> Inference:
        if self.client and self.network == "global":
            raise UserError("network", "is global, but client asks for the network of one site", "drop one of the two")
        return self

    def network_at(self, site: str) -> str:
        """Return the name of the client whose own tensors predict `site`; '' for the global network."""
        return "" if self.network == "global" else self.client or site

    @contextmanager
    def on_site(self, model: nn.Module, batches: Site) -> Iterator[Predict]:
        """Yield the function that predicts the batches of one site; by default the network itself.

        Parameters
        ----------
        model : a copy of the trained network, in evaluation mode, to be changed at will
        batches : each call begins a pass over the site's inputs (batch, ...), in test order and without labels; for
            methods that look at all images before they predict the first, or adapt in several passes. A method that
            needs nothing else of the `Site` may declare `Callable[[], Iterator[Tensor]]`

        Yields
        ------
        A function from a batch (batch, ...) to logits (batch, classes). A method whose answers are probabilities
        returns their logarithms: the engine applies softmax.
        """
        yield model

    def at_client(self, model: nn.Module, batches: Site) -> Tensor:
        """Return what an internal site sends for this method after the training: a vector (n,), of equal n everywhere.

        Only called where the class says `asks = True`. `model` is a copy of the final network as this site uses it, or
        the global one with `network: global`, in evaluation mode; `batches` begins a pass over its training images,
        shuffled, without labels or augmentation. These are whole batches of `batch_size`, unless the site has fewer
        images; where batches do not matter (`batches_matter`), they are all images, in batches of any size.
        """
        raise NotImplementedError

    def require_policy(self, bn: str, norms: Sequence[str], where: str) -> None:
        """Raise UserError, located at `where`, if the method makes no sense with the batch-norm policy `bn`.

        `norms` are the types of normalisation layers that the policy is about. By default every policy is accepted.
        """

    def hint(self, classes: int) -> str:
        """Return a warning if a setting makes the method ineffective with this number of classes; otherwise ''."""
        return ""

    def image_order(self, n: int) -> np.ndarray:
        """Return the order (n,) in which the `n` images of a site are predicted, as indices."""
        return np.arange(n) if self.order is None else stream(self.order, "test order").permutation(n)

    def score_columns(self) -> dict[str, Any]:
        """Return the columns momentum, batch_size and order of `scores.csv`; None for settings that do not apply."""
        return {"momentum": None, "batch_size": self.batch_size, "order": self.order}

    @property
    def uses_labels(self) -> bool:
        """Whether labelled images of the site are used: scores then do not compare with those without labels."""
        return self.personalise is not None

    @property
    def labels_used(self) -> str:
        """The labelled images of the site that are used, and how, as a short text for tables; '' for none."""
        return self.personalise.title if self.personalise else ""

    def caveat(self, name: str) -> str:
        """Return the warning that a report must state about this inference, under its name there; '' for none."""
        return self.personalise.caveat(name) if self.personalise else ""

    def adapt_to_labels(self, model: nn.Module, test: Labelled, val: Labelled, site: str) -> np.ndarray:
        """Adapt `model` in place to labelled images of a site, as the settings ask for, before `on_site`.

        `test` and `val` are the site's test and validation images. Returns a mask (n,), bool, of the test images that
        must not be scored. Raises UserError where there are too few images.
        """
        if self.personalise:
            return self.personalise.adapt(model, test, val, site)
        return np.zeros(len(test), dtype=bool)

    def described(self) -> dict[str, Any]:
        """Return the settings as plain data for people; leave out personalise, network and external_bn if unused."""
        unused = {
            "personalise": not self.uses_labels,
            "network": self.network == "own",
            "external_bn": self.external_bn == "clients",
        }
        return self.model_dump(mode="json", exclude={name for name, without in unused.items() if without})

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as plain data; `personalise`, if set, in full."""
        settings = self.model_dump(mode="json", exclude_defaults=True)
        if self.personalise:
            settings["personalise"] = self.personalise.model_dump(mode="json")
        return settings


ORDERED: Any = Field(0, ge=0, description=Inference.model_fields["order"].description)
"""The default of the field `order` for a method to which batches matter: images are shuffled by seed 0 unless the study
says otherwise."""
