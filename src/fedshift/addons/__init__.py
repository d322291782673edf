"""Add-ons, one file each: domain-generalisation methods on top of any algorithm.

An add-on changes the local objective and may give the network heads of its own.
What is sent and how it is averaged belongs to the algorithms.
"""

from ._base import Addon, extended

__all__ = ["Addon", "extended"]
