"""The pages that people read: one for each study, one for each run applied to new images, and an index of all studies.

Numbers and comparisons with papers come from the package `analysis`; this package turns them into tables, sentences and
HTML.
"""
