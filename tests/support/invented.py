"""Invented results that the tests of single figures share: those on which the contract draws figures."""

from fedshift.contract.invented import made, moment, row, tsmobn

__all__ = ["made", "moment", "row", "tsmobn"]
