"""Assignment of samples to sites, roles and splits: the table of a partition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..data.prepared import read_samples
from ..io.tables import write_table

if TYPE_CHECKING:
    from ..study.run import Run


def assign(run: Run, samples: Path, out: Path, code: str = "") -> None:
    """Write `out`: the sample, site, role and split of each sample of a run's partition, given samples.parquet."""
    table = run.partition.assign(read_samples(samples))
    table.attrs = {"code": code, "partition": run.partition_id}
    write_table(out, table)
