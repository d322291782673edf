"""Federated training: rounds of local training, aggregation, validation and selection, and their checkpoints.

It trains any network on any samples, and needs neither a study nor a file.
Methods belong to `algorithms`; jobs that read and write files belong to `jobs`.
"""
