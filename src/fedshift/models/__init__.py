"""Network architectures, one plug-in in each file.

Each builds a network, given the shape of an image and the number of classes. Training, the flat vector of a network's
tensors, and batch-norm policies belong elsewhere (`engine`, `nn`).
"""

from ._base import Model, initialise, require_images, shaped

__all__ = ["Model", "initialise", "require_images", "shaped"]
