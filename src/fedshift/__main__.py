"""Command line as `python -m fedshift`, which the rules of the workflow call."""

import sys

from .core.fork_client import run_warm

code = run_warm()
if code is None:
    try:
        from .cli.parser import main

        code = main()
    except KeyboardInterrupt:  # while modules are imported
        print("interrupted", file=sys.stderr)
        code = 130
sys.exit(code)
