"""Ways of predicting a site with a trained network, one file each.

A file here says how batch norm, or the network, is adapted at test time, and in which order images are seen.
Loading runs and writing predictions belong to `jobs`.
"""

from ._base import Inference, Personalise

__all__ = ["Inference", "Personalise"]
