"""A process that leaves waits for its threads, calls its exit handlers, writes its output and has its exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import atexit, sys, threading, time
from fedshift.core.process import leave

class Loud:
    def __del__(self):
        print("taken apart")

kept = Loud()
atexit.register(print, "handler")
written = threading.Event()
threading.Thread(target=lambda: (written.wait(), time.sleep(0.05), print("thread"))).start()
sys.stdout.write("output ")
sys.stderr.write("error")
written.set()
leave(3)
"""


def test_a_process_ends_with_all_but_its_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "output thread\nhandler\n", "error")


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["list", "nonsense"], 2)])
def test_the_command_line_keeps_its_exit_codes(words: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "fedshift", *words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert bool(done.stdout) == (code == 0)
