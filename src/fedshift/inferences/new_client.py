"""A client that joins a trained federation: FedBN, appendix G, with a few labelled images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.rng import stream
from ..core.spelling import counted
from ._base import Inference, Labelled, steps_on

if TYPE_CHECKING:
    from torch import nn


class NewClient(Inference):
    """Fine-tuning on a few labelled images of a site, which joins the federation after the training.

    FedBN's appendix G gives a new client the layers outside batch norm as they are; it learns its own batch norm. Here
    it starts from the global network, whose gamma, beta and statistics are, where batch norm stayed local, the means
    over clients. It takes ordinary SGD steps, each on all of its `images` labelled images: batch norm uses their
    statistics, and moves the running ones towards them. The site's other test images are then predicted as by `source`.
    The paper gives neither the number of images nor the steps: these are our decisions.

    Every site is predicted in this way. An internal site starts from its own tensors, and shows what a few more
    labelled images do at home. `images: [8, 32, 128]` compares several numbers; smaller draws are part of larger ones,
    and with `held_back` all of them are scored on the same images.
    """

    images: int = Field(10, ge=2, description="labelled test images to fine-tune on, drawn at random; never scored")
    held_back: int | None = Field(
        None, ge=2, description="test images that are not scored, at least `images`; default: the labelled images alone"
    )
    train: Literal["batch_norm", "all"] = Field(
        "batch_norm", description="what is fine-tuned: gamma and beta of batch norm, or all trainable parameters"
    )
    steps: int = Field(20, ge=1, description="SGD steps, each on all labelled images")
    lr: float = Field(0.01, gt=0, allow_inf_nan=False, description="learning rate of the steps")
    seed: int = Field(0, ge=0, description="seed of the draw of labelled images, the same for all runs")

    @model_validator(mode="after")
    def _once(self) -> NewClient:
        if self.personalise:
            raise UserError("personalise", "and new_client both take steps on labelled images", "drop personalise")
        if self.held_back is not None and self.held_back < self.images:
            problem = f"is {self.held_back}, and {self.images} labelled images must not be scored"
            raise UserError("held_back", problem, "give the largest number of images that is compared")
        return self

    def adapt_to_labels(self, model: nn.Module, test: Labelled, val: Labelled, site: str) -> np.ndarray:
        """Fine-tune `model` in place on labelled test images of a site, and leave it in training mode.

        Returns a mask (n,), bool, of the test images that must not be scored. Raises UserError where a site has too few
        images. A network without batch norm stays as it is where only batch norm is trained.
        """
        from ..nn.batchnorm import affine_parameters

        drawn = stream(self.seed, "new client", site).permutation(len(test))
        unscored = np.zeros(len(test), dtype=bool)
        unscored[drawn[: self.held_back or self.images]] = True
        if len(test) < self.images:
            problem = f"has {len(test)} test images, and {self.images} labelled ones are asked for"
            raise UserError(f"site {site!r}", problem, "give fewer images")
        parameters = affine_parameters(model) if self.train == "batch_norm" else list(model.parameters())
        # Without batch norm there may be nothing to train, and torch's optimisers refuse an empty list.
        if parameters:
            key = (self.seed, "new client", site, "dropout")
            steps_on(model, test, drawn[: self.images], parameters, self.steps, self.lr, key)
        return unscored

    @property
    def uses_labels(self) -> bool:
        return True

    @property
    def labels_used(self) -> str:
        return f"{self.images} test images, steps {self.steps}, lr {self.lr:g}, seed {self.seed}"

    def caveat(self, name: str) -> str:
        return (
            f"{name} first takes {counted(self.steps, 'gradient step')} on {self.images} labelled images "
            "of the site, which are not scored, so that its gain is not over the same images. It is not comparable "
            "with what needs no labels."
        )
