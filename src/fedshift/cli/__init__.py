"""The command line: parser, commands, and the catalogue of algorithms that the docs are made from.

A command reads its arguments, calls one function of a room below, and prints what came of it.
Nothing is computed here, and no numeric library is loaded before a command needs it.
"""

from .parser import main

__all__ = ["main"]
