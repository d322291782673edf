"""`python -m fedshift`: the command line, as the workflow's rules call it."""

import sys

from .cli.parser import main

sys.exit(main())
