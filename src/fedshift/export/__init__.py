"""Exports of studies and runs in the formats of other tools.

Pages of this project belong to `report`.
"""
