"""The end of a command's process."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process after its threads and exit handlers, as `multiprocessing` ends the processes that it forks.

    Python would first take all libraries apart: a second of processor time where torch and pandas are loaded, and two
    in a forked process, which has to copy the memory that it shares to do so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
