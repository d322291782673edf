"""FCN on ResNet-50 against torchvision's: names, initial weights, logits, and what is pretrained."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import resnet50
from torchvision.models.segmentation import fcn, fcn_resnet50
from toy import differing

from fedshift import Federation
from fedshift.core.errors import UserError
from fedshift.models import initialise
from fedshift.models.fcn_resnet50 import FCNResNet50
from fedshift.nn.features import head


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return initialise(FCNResNet50(), (3, 64, 64), 3, seed=0)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """The network with all layers and names, and few parameters: a federation holds several copies of them."""

    def head(channels: int, classes: int) -> nn.Module:
        first, last = nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.Conv2d(8, classes, 1)
        return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1), last)

    monkeypatch.setattr(fcn, "resnet50", partial(resnet50, width_per_group=4))
    monkeypatch.setattr(fcn, "FCNHead", head)
    return initialise(FCNResNet50(), (3, 64, 64), 3, seed=0)


def pair(n: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 3, 40, 33), torch.randint(0, 3, (n, 40, 33))


def test_it_is_torchvisions(network: nn.Module) -> None:
    theirs = fcn_resnet50(weights=None, weights_backbone=None, num_classes=3)
    theirs.load_state_dict(network.state_dict())
    x, _ = pair()
    with torch.no_grad():
        assert torch.equal(network.eval()(x), theirs.eval()(x)["out"])


def test_its_batch_norm_stays_at_home(network: nn.Module, narrow: nn.Module) -> None:
    """ResNet-50 has 53 convolutions, each with batch norm, and the head one more: five tensors each."""
    assert [*narrow.state_dict()] == [*network.state_dict()]
    kept = Federation(narrow, {"a": pair()}, bn="local", task="segmentation").trainer.own_names
    assert len(kept) == 5 * (53 + 1)


def test_resnet_50_alone_is_pretrained(network: nn.Module, tmp_path: Path) -> None:
    with torch.device("meta"):
        empty = resnet50(weights=None).state_dict()
    state = {name: torch.tensor(0.5).to(tensor.dtype).expand(tensor.shape) for name, tensor in empty.items()}
    file = tmp_path / "resnet50.pth"
    torch.save(state, file)
    model = FCNResNet50(weights=file, sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    found = initialise(model, (3, 64, 64), 3, seed=0).state_dict()
    given = {f"backbone.{name}": tensor for name, tensor in state.items() if not name.startswith("fc.")}
    assert [name for name, tensor in given.items() if not torch.equal(found[name], tensor)] == []
    assert sorted({name.split(".")[0] for name in found.keys() - given.keys()}) == ["classifier"]
    same = {name: tensor for name, tensor in network.state_dict().items() if name.startswith("classifier")}
    assert differing({name: found[name] for name in same}, same) == []


def test_its_head_is_the_last_convolution(network: nn.Module) -> None:
    assert head(network) is network.get_submodule("classifier.4")


def test_fedrod_says_why_it_does_not_fit(narrow: nn.Module) -> None:
    federation = Federation(narrow, {"a": pair()}, algorithm="fedrod", task="segmentation")
    with pytest.raises(UserError, match="model: enlarges the outputs of its last layer, and FedRoD adds"):
        federation.run(1)
