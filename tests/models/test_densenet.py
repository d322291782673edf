"""DenseNet of this package against torchvision's: names, initial weights, logits and gradients, to the bit."""

from __future__ import annotations

import pytest
import torch
import torchvision

from fedshift.models._densenet import DenseNet


@pytest.mark.parametrize(
    ("growth", "blocks", "stem", "bottleneck", "classes"),
    [(32, (6, 12, 24, 16), 64, 4, 2), (8, (1, 1, 1), 16, 2, 3), (4, (1, 2, 1, 1), 6, 2, 2)],
)
def test_it_is_torchvisions(growth: int, blocks: tuple[int, ...], stem: int, bottleneck: int, classes: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        theirs = torchvision.models.DenseNet(growth, blocks, stem, bn_size=bottleneck, num_classes=classes)
        torch.manual_seed(3)
        ours = DenseNet(growth, blocks, stem, bottleneck, classes)
        x = torch.randn(2, 3, 64, 48)
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in theirs.named_modules()]
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    different = [name for name, value in theirs.state_dict().items() if not torch.equal(ours.state_dict()[name], value)]
    assert different == []
    trained, expected = ours(x), theirs(x)
    assert torch.equal(trained, expected)
    trained.square().sum().backward()
    expected.square().sum().backward()
    gradients = dict(theirs.named_parameters())
    assert [name for name, p in ours.named_parameters() if not torch.equal(p.grad, gradients[name].grad)] == []
    assert torch.equal(ours.eval()(x), theirs.eval()(x)), "running statistics"
