"""What a reader needs to trust, and to repeat, a run."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .federation import Federation
    from .study import Run

PACKAGES = ("fedshift", "torch", "torchvision", "monai", "wilds", "numpy", "pandas", "snakemake")


def git() -> dict[str, Any]:
    """Commit of this code, and whether its files differ from it; empty where it is not in a repository."""

    def ask(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "dirty": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {}


def versions() -> dict[str, str]:
    """Of Python and of the packages that shape a result."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def peak_memory_mb() -> float:
    """The process's highest resident memory so far, MiB; memory-mapped pages that were touched count."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 / (1024 if sys.platform == "darwin" else 1)


class Recorder:
    """Notes when a run began and how long this process worked on it."""

    def __init__(self, run: Run, *, code: str, threads: int, device: torch.device) -> None:
        self.run, self.code, self.threads, self.device = run, code, threads, device

    def __enter__(self) -> Recorder:
        self.started, self.clock = datetime.now(UTC), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self.clock

    def manifest(self, federation: Federation) -> dict[str, Any]:
        """The content of manifest.json."""
        import torch

        kept = federation.result()
        cuda = self.device.type == "cuda"
        return {
            "run": self.run.id,
            "seed": self.run.seed,
            "code": self.code,
            "git": git(),
            "versions": versions(),
            "device": torch.cuda.get_device_name(self.device) if cuda else f"CPU ({platform.machine()})",
            "threads": self.threads,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "rounds": federation.server.round,
            "best_round": kept.round,
            "best_value": None if kept.value != kept.value else kept.value,
            "floats": federation.ledger(),
            "peak_memory_mb": round(peak_memory_mb(), 1),
        }
