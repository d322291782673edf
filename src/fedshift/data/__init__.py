"""Data between the dataset and the engine: partitions into sites and splits, prepared arrays, and batches.

A partition says who trains, validates and tests; samples are fetched batch by batch.
Downloads and raw formats belong to `datasets`.
"""
