"""JiGen: Carlucci et al., Domain Generalization by Solving Jigsaw Puzzles (2019)."""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field, model_validator

from ..algorithms import Local, class_loss
from ..core.errors import UserError
from ..core.rng import stream
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor, nn

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey value."""


class JiGen(Addon):
    """Images are cut into tiles and shuffled, and a second head predicts the order of the tiles.

    An image stays in order with probability `bias_whole_image`. Otherwise its order is drawn uniformly from the
    original order, class 0, and `permutations` others. The loss is the cross-entropy of the class head on these images,
    plus `weight` times that of the jigsaw head. The jigsaw head is one linear layer on the inputs of the last linear
    layer. It travels and is averaged with the rest, which adds (features + 1)(permutations + 1) floats each way. It
    keeps no state. Test images are left whole, and only the class head answers.

    The orders are chosen one after another. Each has the largest Hamming distance to its nearest neighbour among those
    chosen before it; `permutation_seed` breaks ties. The original order counts as the first (our decision). If a side
    of the images is not a multiple of `grid`, all training images are padded up to the multiple with their border
    pixels, and cropped back after shuffling: an image in order stays as it was, as sharp as test images (our decision).
    Tiles turn grey in the network's input, if it has three channels. This is after normalisation, while the reference
    code uses stored images (our decision).

    Defaults: those of the paper's ResNet-18 (0.7 and 0.9), and grey tiles as in its code. The values of TsmoBN's
    federated version are not known. `classify_only_sane` follows the paper's text, which its code does only on request.
    """

    tasks = ("classification",)
    paper = "Carlucci et al. 2019"
    weighs_classes = True
    grid: int = Field(3, ge=2, le=3, description="number of tiles along a side of the image")
    permutations: int = Field(30, ge=1, description="number of orders of the tiles beside the original one")
    permutation_seed: int = Field(0, ge=0, description="seed for the choice of orders")
    bias_whole_image: float = Field(0.9, ge=0, le=1, description="probability that an image stays in order (beta)")
    weight: float = Field(0.7, ge=0, description="weight of the jigsaw head's loss (lambda)")
    grayscale: float = Field(0.1, ge=0, le=1, description="probability that a tile of a colour image turns grey")
    classify_only_sane: bool = Field(False, description="leave shuffled images out of the class head's loss")

    @model_validator(mode="after")
    def _there_are_so_many_orders(self) -> JiGen:
        most = math.factorial(self.grid**2) - 1
        if self.permutations > most:
            problem = f"{self.grid} x {self.grid} tiles have {most} orders beside the original, not {self.permutations}"
            raise UserError("permutations", problem, "ask for fewer")
        return self

    def extend(self, model: nn.Module) -> nn.Module:
        import copy

        import torch
        from torch import nn

        from ..nn.features import classifier

        model = copy.deepcopy(model)
        last = classifier(model)  # its forward pass ignores the tensors that are added here
        head = nn.Linear(last.in_features, self.permutations + 1).to(last.weight)
        last.jigsaw_weight = head.weight
        last.jigsaw_bias = head.bias
        table = torch.from_numpy(orders(self.grid, self.permutations, self.permutation_seed)).to(last.weight.device)
        last.register_buffer("jigsaw_orders", table, persistent=False)
        return model

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.nn.functional import cross_entropy, linear

        from ..nn.features import classifier, inputs_of

        last: Any = classifier(local.model)
        stays = torch.rand_like(y, dtype=torch.float32) < self.bias_whole_image
        order = torch.randint_like(y, self.permutations + 1).masked_fill(stays, 0)
        with inputs_of(last) as features:
            logits = local.model(self._shuffled(x, last.jigsaw_orders.index_select(0, order)))
        jigsaw = cross_entropy(linear(features[0], last.jigsaw_weight, last.jigsaw_bias), order)
        if not self.classify_only_sane:
            return class_loss(local, logits, y) + self.weight * jigsaw, logits
        sane = order == 0
        losses = class_loss(local, logits, y, reduction="none")
        return (losses * sane).sum() / sane.sum().clamp(min=1) + self.weight * jigsaw, logits

    def _shuffled(self, x: Tensor, order: Tensor) -> Tensor:
        """Return images (batch, channels, height, width) whose tile `t` was tile `order[:, t]`, counted row by row.

        Draws which tiles turn grey. Raises UserError for inputs that cannot be cut into tiles.
        """
        import torch
        from torch.nn.functional import pad

        from ..nn.device import constant

        if x.dim() != 4 or min(x.size(-2), x.size(-1)) < self.grid:
            problem = f"the network's inputs are not images of at least {self.grid} x {self.grid} pixels"
            raise UserError("addon (jigen)", problem, "leave the add-on out")
        height, width = x.size(-2), x.size(-1)
        lacking_rows = -height % self.grid
        lacking_columns = -width % self.grid
        top, left = lacking_rows // 2, lacking_columns // 2
        if lacking_rows or lacking_columns:
            x = pad(x, (left, lacking_columns - left, top, lacking_rows - top), mode="replicate")
        grid = (self.grid, -1)
        tiles = x.unflatten(-1, grid).unflatten(-3, grid).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        tiles = torch.take_along_dim(tiles, order[:, :, None, None, None], 1)
        if self.grayscale and x.size(1) == 3:
            grey = (torch.rand_like(order, dtype=torch.float32) < self.grayscale)[:, :, None, None, None]
            luma = constant(LUMA, x.dtype, x.device)[:, None, None]
            tiles = torch.where(grey, (tiles * luma).sum(2, keepdim=True), tiles)
        x = tiles.unflatten(1, grid).permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(2, 3)
        return x[..., top : top + height, left : left + width]


@functools.cache
def orders(grid: int, count: int, seed: int) -> np.ndarray:
    """Return the original order of grid x grid tiles and `count` others far from it and each other.

    The result is int64 (count + 1, grid^2). Ties are broken at random by `seed`.
    """
    tiles = grid**2
    rng = stream(seed, "jigsaw orders")
    flat = itertools.chain.from_iterable(itertools.permutations(range(tiles)))
    every = np.ascontiguousarray(np.fromiter(flat, np.uint8).reshape(-1, tiles).T)
    chosen = [np.arange(tiles, dtype=np.uint8)]
    nearest = np.full(every.shape[1], tiles, np.uint8)
    for _ in range(count):
        np.minimum(nearest, (every != chosen[-1][:, None]).sum(0, dtype=np.uint8), out=nearest)
        chosen.append(every[:, rng.choice(np.flatnonzero(nearest == nearest.max()))])
    return np.stack(chosen).astype(np.int64)
