"""Where things lie: the files that pass between the rules of the workflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRAINED = ("spec.json", "model.safetensors", "clients.safetensors", "rounds.parquet", "manifest.json")
"""Files of a run that is trained."""


@dataclass(frozen=True)
class Paths:
    """All files of a project folder. The Snakefile and the command line share these names."""

    root: Path = Path()

    def raw(self, raw: str) -> Path:
        return self.root / "resources" / raw

    def data(self, data: str) -> Path:
        return self.root / "results" / "data" / data

    def partition(self, partition: str) -> Path:
        return self.root / "results" / "partitions" / f"{partition}.parquet"

    def run(self, run: str) -> Path:
        return self.root / "results" / "runs" / run

    def predictions(self, run: str, inference: str) -> Path:
        return self.run(run) / f"predictions-{inference}.parquet"

    def study(self, study: str) -> Path:
        return self.root / "results" / "studies" / study

    @property
    def accepted(self) -> Path:
        """The ledger of code that was accepted as unchanged."""
        return self.root / "results" / "accepted.json"

    def page(self, study: str) -> Path:
        return self.root / "reports" / f"{study}.html"
