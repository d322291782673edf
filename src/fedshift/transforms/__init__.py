"""Image transforms, one file each, between the stored image and the network.

A file here changes a stored image once (`prepare`), or a batch in training or always (`apply`).
All randomness comes from the generator that is passed in.
"""

from ._base import Transform, greys_after, shape_after

__all__ = ["Transform", "greys_after", "shape_after"]
