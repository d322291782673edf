"""Command line as `python -m fedshift`, which the rules of the workflow call."""

import sys

from .core.process import leave, run_warm

code = run_warm()
if code is not None:
    sys.exit(code)
try:
    from .cli.parser import main

    code = main()
except KeyboardInterrupt:  # while modules are imported
    print("interrupted", file=sys.stderr)
    sys.exit(130)
leave(code)
