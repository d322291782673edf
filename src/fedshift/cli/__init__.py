"""The command line: the parser, and one module for each group of commands.

A command reads its arguments, calls one function of a layer below, and prints the result.
No results are computed here, and no numeric library is loaded before a command needs it.
"""

from .parser import main

__all__ = ["main"]
