"""Checks that every plug-in must pass, each run on one class: docs/contract.md lists them in words.

`fedshift test-plugin FILE` runs them on a plug-in of your own, and tests/contract on all that are found.
Expected numbers of single methods do not belong here: they need a test of their own.
"""

from .case import Broken, Case
from .cases import cases

__all__ = ["Broken", "Case", "cases"]
