"""The base of all ways to predict a site with a trained network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.registry import Plugin
from ._personalise import Labelled, Personalise

if TYPE_CHECKING:
    from torch import Tensor, nn

Predict = Callable[["Tensor"], "Tensor"]
"""A function from a batch of inputs (batch, ...) to its logits (batch, classes)."""


class Inference(Plugin):
    """A way of predicting one site with a trained network: one class in one file of this folder.

    A method overrides `on_site`, a context manager that is entered once for each site and yields the function from a
    batch to its logits. Local variables of `on_site` are the state of a site: an optimiser, a memory of features, a
    teacher network. They are created again at every site, and no site can influence another.

    What the engine promises (`fedshift.engine.prediction`):

    - `model` is a copy of the trained network in evaluation mode, on the right device. A method may change anything:
      parameters, buffers, modes, hooks, `requires_grad`. The copy is thrown away after the site, also after an error.
    - The yielded function is called once for each batch, in the order that `order` and `batch_size` ask for. Its answer
      is what is scored, so a method decides whether that comes from before or after its update. The last batch may be
      smaller, down to a single image.
    - Gradients are recorded in `on_site` and in the yielded function if the class says `gradients = True`, and only
      then. Answers are detached.
    - Torch's default generators are seeded in the same way at every site, and are left as they were. For draws that
      depend on a setting use `fedshift.core.rng.torch_stream(self.seed, "a name")`.
    - Labels are never seen: `batches` yields inputs alone. (Users may ask for steps on labelled images with the field
      `personalise`; these are taken before `on_site`, under any inference.)

    Tools: `fedshift.nn.batchnorm` finds BN layers and their gamma and beta (`batch_norms`, `affine_parameters`) and
    replaces what normalises them (`batch_norm_by`; `by_batch` is the batch's own statistics, with gradients);
    `fedshift.nn.features` gives the last linear layer and its inputs. Import torch and these inside of `on_site`: the
    head of the workflow imports this module, and must not wait for torch.

    Fields are settings. They need bounds and a description, and are named in the study's YAML. A method that sees
    batches should keep the field `order` of the base with the default 0, since stored images may be sorted by class:
    declare `order: int | None = ORDERED`.

    Examples
    --------
    One SGD step on gamma and beta for each batch, towards a lower entropy of the predictions, with BN by the batch's
    own statistics; the answer is that from before the step::

        from __future__ import annotations

        from collections.abc import Callable, Iterator
        from contextlib import contextmanager
        from typing import TYPE_CHECKING, ClassVar

        from pydantic import Field

        from fedshift.inferences import ORDERED, Inference, Predict

        if TYPE_CHECKING:
            from torch import Tensor, nn


        class LowEntropy(Inference):
            \"\"\"Steps towards a lower entropy of each test batch.\"\"\"

            gradients: ClassVar[bool] = True
            order: int | None = ORDERED
            lr: float = Field(0.001, gt=0, description="rate of the steps")

            @contextmanager
            def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
                from torch.optim import SGD

                from fedshift.nn.batchnorm import affine_parameters, batch_norm_by, by_batch

                # the group may be empty: without batch norm a network is predicted as it is
                optimiser = SGD([{"params": affine_parameters(model)}], lr=self.lr)

                def predict(x: Tensor) -> Tensor:
                    logits = model(x)
                    log_p = logits.log_softmax(1)
                    optimiser.zero_grad()
                    (-(log_p.exp() * log_p).sum(1).mean()).backward()
                    optimiser.step()
                    return logits

                with batch_norm_by(model, by_batch):
                    yield predict
    """

    kind: ClassVar[str] = "inference"
    gradients: ClassVar[bool] = False
    """True for methods that need gradients at test time; without gradients, predictions take less memory."""
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
    order: int | None = Field(
        None, ge=0, description="seed of the test order; null keeps the stored order, which may be sorted"
    )

    @model_validator(mode="after")
    def _one_network(self) -> Inference:
        if self.client and self.network == "global":
            raise UserError("network", "is global, but client asks for the network of one site", "drop one of the two")
        return self

    def network_at(self, site: str) -> str:
        """Return the client whose own tensors predict a site; empty for the global network."""
        return "" if self.network == "global" else self.client or site

    @contextmanager
    def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
        """Yield the function that predicts the batches of one site; by default the network itself.

        Parameters
        ----------
        model : a copy of the trained network, in evaluation mode, to be changed at will
        batches : each call begins a pass over the site's inputs (batch, ...), in test order and without labels; for
            methods that look at all images before they predict the first, or adapt in several passes

        Yields
        ------
        A function from a batch (batch, ...) to logits (batch, classes). A method whose answers are probabilities
        returns their logarithms: the engine applies softmax.
        """
        yield model

    def score_columns(self) -> dict[str, Any]:
        """Return what `scores.csv` says of this inference: momentum, batch_size and order, None where meaningless."""
        return {"momentum": None, "batch_size": self.batch_size, "order": self.order}

    @property
    def uses_labels(self) -> bool:
        """Return whether labelled images of the site are used; its scores do not compare with those without labels."""
        return self.personalise is not None

    @property
    def labels_used(self) -> str:
        """Return which labelled images of the site are used and how, in short words for a table; empty for none."""
        return self.personalise.title if self.personalise else ""

    def caveat(self, name: str) -> str:
        """Return what a report must say of this inference, which it calls `name`; empty for nothing."""
        return self.personalise.caveat(name) if self.personalise else ""

    def adapt_to_labels(self, model: nn.Module, test: Labelled, val: Labelled, site: str) -> np.ndarray:
        """Adapt `model` in place to labelled images of a site, as the settings ask for, before `on_site`.

        Returns which test images (n,), bool, must not be scored. Raises UserError where there are too few images.
        """
        if self.personalise:
            return self.personalise.adapt(model, test, val, site)
        return np.zeros(len(test), dtype=bool)

    def described(self) -> dict[str, Any]:
        """Return all settings as plain data, for people; without those of labels and networks where none is asked."""
        unused = {"personalise": not self.uses_labels, "network": self.network == "own"}
        return self.model_dump(mode="json", exclude={name for name, without in unused.items() if without})

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults; which labels are used is said in full."""
        settings = self.model_dump(mode="json", exclude_defaults=True)
        return settings | ({"personalise": self.personalise.model_dump(mode="json")} if self.personalise else {})


ORDERED: Any = Field(0, ge=0, description=Inference.model_fields["order"].description)
"""The field `order` of an inference to which batches matter: shuffled by seed 0 unless the study says otherwise."""
