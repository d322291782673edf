"""What every room stands on: errors, the registry of plug-ins, digests, random streams, and the console.

Nothing here knows of federations, studies or files of a run.
A change here shapes no result, with one exception: `rng`, which says what is drawn.
"""
