"""Puts cases that fail in every way into the part `facts`, in a process that `benchmarks/gpu.py --load` starts."""

import os
import sys
import time
import types

from card.setting import Case, NotHereError, WrongError


def wrong():
    raise WrongError("is not what it must be", {"difference": 2.0})


def raises():
    raise ValueError("one line\nand another")


def lacks():
    raise NotHereError("no such thing here")


def cases(setting):
    yield Case("wrong", 0, wrong)
    yield Case("raises", 0, raises)
    yield Case("lacks", 0, lacks)
    yield Case("dies", 0, lambda: os._exit(3))
    yield Case("hangs", 0, lambda: time.sleep(10_000), limit=1)
    yield Case("goes on", 0, lambda: {"number": 1.0})
    yield Case("is too long", 1e9, lambda: {"number": 2.0})
    if os.environ.get("HANG"):
        yield Case("hangs to the end", 0, lambda: time.sleep(10_000), limit=10_000)
    raise KeyError("no more")


sys.modules["card.facts"] = types.SimpleNamespace(cases=cases)
