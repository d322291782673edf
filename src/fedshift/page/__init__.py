"""The page of a study, the pages of applied runs, and the index of all studies.

Numbers come from `analysis`, comparisons with papers too. Here they become tables, sentences and HTML.
"""
