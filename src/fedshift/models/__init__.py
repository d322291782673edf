"""Network architectures, one file each.

A file here builds a network from the shape of an image and the number of classes.
Training, flat state and batch-norm policies do not belong here.
"""

from ._base import Model, initialise, require_images, shaped

__all__ = ["Model", "initialise", "require_images", "shaped"]
