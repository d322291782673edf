"""The base of all other folders: errors, the registry of plug-ins, digests, random streams, and the console.

Nothing here knows federations, studies or the files of a run.
A change here changes no result, with one exception: `rng`, which decides what is drawn.
"""
