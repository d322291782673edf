"""Add-ons, one file each: domain-generalisation methods that can be combined with any algorithm.

An add-on changes the local objective and may add layers to the network.
Algorithms decide what is sent and how it is averaged.
"""

from ._base import Addon, extended, home_names

__all__ = ["Addon", "extended", "home_names"]
