"""Command line as `python -m fedshift`, which the rules of the workflow call."""

import sys

from .cli.parser import main

sys.exit(main())
