"""Federations of real sites over Flower: messages on its wire, its processes, and keys.

Flower carries messages alone. Server and sites run the installed package, and never code that came over the wire:
`fedshift serve` and `fedshift site` start SuperLink and SuperNode with process isolation, and do the tasks themselves.
What this needs of Flower beyond its public API is in `wire` alone, for the one minor version of the extra
`fedshift[flower]`.
"""
