"""Predictions of a run that are there already, by inference: a further inference predicts nothing else anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core import digest
from ..core.errors import UserError
from ..io import identity
from ..io.checksums import checksum_of, damage
from ..io.paths import Paths, RunFiles
from ..io.tables import read_table
from .accept import predict_code

if TYPE_CHECKING:
    import pandas as pd

    from ..inferences import Inference
    from ..study.run import Run

ORIGINS = "origins"
"""The attribute of a table of predictions that holds what each inference was made from, by the id of the inference."""


def origins(run: Run, inferences: Mapping[str, Inference], paths: Paths) -> dict[str, str]:
    """Return a digest of what the predictions of each inference follow from, beside the tensors of the run.

    These are code, images, samples and partition; "" where no checksum of the files was recorded.
    """
    data = paths.data_files(run.data.id)  # the card holds checksums of the images
    sums = [checksum_of(file) for file in (data.card, data.samples, paths.partition(run.partition_id))]
    return {
        key: digest.of([*sums, predict_code(run, inference)]) if all(sums) else ""
        for key, inference in inferences.items()
    }


def kept(files: RunFiles, wanted: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """Return the predictions of a run that have the `wanted` origins, by inference, from whichever file holds them.

    A file that is damaged, or of other tensors than those of the run now, is passed over: its inferences predict anew.
    """
    found: dict[str, pd.DataFrame] = {}
    for file in files.every_prediction:
        try:
            about = {} if damage(file) else identity.stated(file)
            of_run = identity.of_predictions(files, ())
            made = about.get(ORIGINS) or {}
            same = "network" in of_run and all(about.get(key) == of_run[key] for key in ("run", "network"))
            useful = [key for key in made if same and made[key] and made[key] == wanted.get(key) and key not in found]
            if useful:
                table = read_table(file)
                several = "inference" in table
                found |= {key: table[table["inference"] == key] if several else table for key in useful}
        except UserError:
            continue
    return {key: table.drop(columns="inference", errors="ignore") for key, table in found.items()}
