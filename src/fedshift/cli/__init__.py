"""The command line: the parser, and modules of commands that belong together.

A command reads its arguments, calls one function of a layer below, and prints the result.
Nothing is computed here, and no numeric library is loaded before a command needs it.
"""

from .parser import main

__all__ = ["main"]
