"""torchvision's ImageNet weights, from torch's cache or from the network."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import digest
from ..core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torchvision.models import WeightsEnum


def imagenet(weights: WeightsEnum, name: str, title: str) -> dict[str, Tensor]:
    """Return the state of a network with 1000 classes. `name` is the model's here, `title` that of torchvision's.

    Raises UserError, with the file's path, if the file cannot be obtained or is not torchvision's, whose name ends with
    the first digits of its SHA-256.
    """
    import torch

    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rsplit("/", 1)[-1]
    expected = file.stem.rpartition("-")[2]
    # torch checks a file that it downloads, and not one that is there already.
    if file.is_file():
        sha256 = digest.of_file(file)
        if not sha256.startswith(expected):
            problem = f"does not hold torchvision's {title}: sha256 is {sha256}, expected {expected}..."
            raise UserError(file, problem, "remove it, and start again to download it")
    try:
        return weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (urllib.error.URLError, OSError) as error:
        problem = f"cannot download the ImageNet weights ({getattr(error, 'reason', error)})"
        raise UserError(f"model {name}", problem, f"download {file.name} and put it into {file.parent}") from error
    except Exception as error:
        raise UserError(
            file, f"holds no weights of {title} ({error})", "remove it, and start again to download it"
        ) from error
