"""The places of the files that pass between the rules of the workflow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRAINED = ("spec.json", "model.safetensors", "clients.safetensors", "rounds.parquet", "manifest.json")
"""The files of a trained run."""


@dataclass(frozen=True)
class Paths:
    """The files of a project folder. The Snakefile and the command line share these names."""

    root: Path = Path()

    def raw(self, raw: str) -> Path:
        """Return the folder of raw files of a dataset."""
        return self.root / "resources" / raw

    def data(self, data: str) -> Path:
        """Return the folder of a prepared dataset."""
        return self.root / "results" / "data" / data

    def partition(self, partition: str) -> Path:
        """Return the file of a partition."""
        return self.root / "results" / "partitions" / f"{partition}.parquet"

    def run(self, run: str) -> Path:
        """Return the folder of a run."""
        return self.root / "results" / "runs" / run

    def predictions(self, run: str, inference: str) -> Path:
        """Return the file of the predictions of a run with one way of inference, or several."""
        return self.run(run) / f"predictions-{inference}.parquet"

    def study(self, study: str) -> Path:
        """Return the folder of a study's tables and figures."""
        return self.root / "results" / "studies" / study

    @property
    def accepted(self) -> Path:
        """Return the ledger of code that was accepted as unchanged."""
        return self.root / "results" / "accepted.json"

    def page(self, study: str) -> Path:
        """Return the page of a study."""
        return self.root / "reports" / f"{study}.html"
