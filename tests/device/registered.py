"""Registers the stand-in accelerator in a process that `benchmarks/gpu.py --load` starts; STANDIN is its library."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import standin

standin.load(Path(os.environ["STANDIN"]))
