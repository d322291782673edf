"""Federated training: rounds of local training, aggregation, validation and selection, and their checkpoints.

The engine trains any network on any samples, and needs neither a study nor a file.
`algorithms` holds the methods; `jobs` reads and writes the files.
"""
