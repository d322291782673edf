"""Published tables and claims beside our numbers.

The words of a table are resolved to conditions of a study; values and trends are compared by written rules.
Scores are computed in `analysis`; pages are made in `report`.
"""
