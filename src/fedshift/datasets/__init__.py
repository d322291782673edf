"""Datasets, one file each: where raw files come from, and how they are read.

A file here states source, licence, citation and checksums, and yields images with site, label and patient.
Partitions and prepared arrays belong to `data` and `jobs`.
"""

from ._base import SAMPLE_COLUMNS, Card, Dataset, Examined, Opened, Scale, SiteKind

__all__ = ["SAMPLE_COLUMNS", "Card", "Dataset", "Examined", "Opened", "Scale", "SiteKind"]
