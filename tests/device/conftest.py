"""Lets tests of this folder import `benchmarks/gpu.py` and its parts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
