"""The base of all other folders: errors, the registry of plug-ins, digests, random streams, and the console.

No module here knows federations, studies or the files of a run.
A change of a module here changes no result, except for `rng`, which decides all random draws.
"""
