"""Command line as `python -m fedshift`, which the rules of the workflow call."""

import sys

from .core.fork_client import run_warm

code = run_warm()
if code is not None:
    sys.exit(code)
try:
    from .cli.parser import main
    from .core.ending import leave

    code = main()
except KeyboardInterrupt:  # while modules are imported
    print("interrupted", file=sys.stderr)
    sys.exit(130)
leave(code)
