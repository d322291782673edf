"""Rows of single images on their way from the sites to the server's page: under pseudonyms, as tables in bytes."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from ..core.errors import UserError
from ..io import checksums, identity
from ..io.paths import Paths
from ..io.tables import write_table
from ..io.text import write_json

if TYPE_CHECKING:
    from ..study.plan import Plan
    from ..study.run import Run


def pseudonyms(samples: pd.DataFrame, site: str) -> dict[str, dict[str, str]]:
    """Return names for the samples and patients of a site that do not tell who they are, by column."""
    return {
        column: {str(value): f"{site}-{column[0]}{k}" for k, value in enumerate(sorted(set(samples[column].dropna())))}
        for column in ("sample", "patient")
    }


def renamed(table: pd.DataFrame, names: dict[str, dict[str, str]]) -> pd.DataFrame:
    """Return a table with the pseudonyms of its samples and patients."""
    return table.assign(**{c: table[c].map(new) for c, new in names.items() if c in table})


def in_bytes(table: pd.DataFrame) -> torch.Tensor:
    """Return a table as the bytes of a Parquet file, (n,) uint8."""
    buffer = io.BytesIO()
    table.reset_index(drop=True).to_parquet(buffer, engine="pyarrow", index=False)
    return torch.from_numpy(np.frombuffer(buffer.getvalue(), dtype=np.uint8).copy())


def as_table(content: torch.Tensor) -> pd.DataFrame:
    """Return the table of `in_bytes`. Raises UserError for other bytes."""
    try:
        return pd.read_parquet(io.BytesIO(content.numpy().tobytes()), engine="pyarrow")
    except (ValueError, OSError) as error:
        raise UserError("rows of a site", "cannot be read as a table", "start the site again") from error


def write_rows(plan: Plan, run: Run, rows: Mapping[str, Mapping[str, pd.DataFrame]]) -> None:
    """Write the tables of all sites as preparation, partition and prediction write theirs, for the page to read."""
    paths = Paths()
    files = paths.data_files(run.data.id)

    def joined(name: str) -> pd.DataFrame:
        return pd.concat([tables[name] for tables in rows.values()], ignore_index=True)

    samples, partition = joined("samples"), joined("partition")
    samples.attrs = {"data": run.data.id}
    partition.attrs = {"partition": run.partition_id}
    write_table(files.samples, samples)
    write_table(paths.partition(run.partition_id), partition)
    counts = {
        str(s): {"images": len(r), "patients": int(r["patient"].nunique()) or None} for s, r in samples.groupby("site")
    }
    card = {
        **dataclasses.asdict(run.data.card),
        "dataset": run.data.dataset.spec(),
        "synthetic": run.data.synthetic,
        "prepare": [t.spec() for t in run.data.prepare],
        "classes": list(run.data.dataset.classes),
        "sites": counts,
        "checksums": {},
        "data": run.data.id,
        "notes": ["Images stayed at their sites: copies between sites were not looked for."],
    }
    write_json(files.card, card)
    predictions = joined("predictions")
    predictions.attrs.update(identity.of_predictions(paths.run_files(run.id), plan.predictions(run.id)))
    out = paths.predictions(run.id, plan.prediction_jobs[run.id])
    write_table(out, predictions)
    checksums.record(out, files.samples, files.card, paths.partition(run.partition_id))
