"""Ways of predicting a site with a trained network, one file each.

A file here says how batch norm, or the network, is adapted at test time, and in which order images are seen.
The class `Inference` says how one is written. Loading runs and writing predictions belong to `jobs`, and the pass over
a site's batches to `engine.prediction`.
"""

from ._base import COUNT, ORDERED, Inference, Personalise, Predict, Site

__all__ = ["COUNT", "ORDERED", "Inference", "Personalise", "Predict", "Site"]
