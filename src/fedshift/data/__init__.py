"""Data between the dataset and the engine: partitions into sites and splits, prepared arrays, and batches.

A partition decides which samples train, validate and test; samples are fetched batch by batch.
Downloads and raw formats belong to `datasets`.
"""
