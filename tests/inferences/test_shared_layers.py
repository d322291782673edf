"""A BN layer that the network uses twice has test statistics for each use, as training has batches for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedshift.inferences.population import Population
from fedshift.inferences.tsmobn import TsmoBN

PRECISION: Any = {"rtol": 1e-12, "atol": 1e-12}


class Twice(nn.Module):
    """Two linear layers, both followed by the same BN layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.norm = nn.Linear(3, 4).double(), nn.Linear(4, 4).double(), nn.BatchNorm1d(4)
        self.norm.double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.second(self.norm(self.first(x)).tanh() + 3))
        return out


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 3, generator=generator, dtype=torch.float64) * (1 + t) + t for t in range(3)]


def test_the_first_batch_of_tsmobn_is_batch_norm_in_train_mode() -> None:
    model, x = Twice().eval(), batches()[0]
    with torch.no_grad(), TsmoBN().on_site(model, lambda: iter([x])) as predict:
        got = predict(x)
    torch.testing.assert_close(got, Twice().train()(x).detach(), **PRECISION)


def test_later_batches_of_tsmobn_track_each_use_by_hand() -> None:
    model = Twice().eval()
    with torch.no_grad(), TsmoBN(momentum=0.5).on_site(model, lambda: iter(batches())) as predict:
        got = [predict(x) for x in batches()]
        history: dict[int, tuple[Tensor, Tensor]] = {}
        for x, out in zip(batches(), got, strict=True):
            h = x
            for use, linear in enumerate((model.first, model.second)):
                h = linear(h.tanh() + 3 if use else h)
                mean, square = h.mean(0), (h - h.mean(0)).square().mean(0)
                if use in history:
                    mean = (history[use][0] + mean) / 2
                    square = (history[use][1] + (h - mean).square().mean(0)) / 2
                history[use] = mean, square
                h = (h - mean) / (square + model.norm.eps).sqrt()
            torch.testing.assert_close(out, h, **PRECISION)


@pytest.mark.parametrize("parts", [1, 3])
def test_population_pools_each_use_by_itself(parts: int) -> None:
    """With one batch it is batch norm in train mode; the first use is exact for any number of batches."""
    model, given = Twice().eval(), batches()[:parts]
    whole = torch.cat(given)
    seen: list[Tensor] = []
    with torch.no_grad(), Population().on_site(model, lambda: iter(given)) as predict:
        hook = model.second.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        got = predict(whole)
        hook.remove()
    h = model.first(whole)
    first = (h - h.mean(0)) / (h.var(0, unbiased=False) + model.norm.eps).sqrt()
    torch.testing.assert_close(seen[-1], first.tanh() + 3, **PRECISION)
    if parts == 1:
        torch.testing.assert_close(got, Twice().train()(whole).detach(), **PRECISION)
