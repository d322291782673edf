"""The files of a trained run, whoever trained it: one process, several, or real sites."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..io import checksums
from ..io.arrays import write_tensors
from ..io.paths import RunFiles
from ..io.tables import write_table
from ..io.text import write_json

if TYPE_CHECKING:
    from torch import Tensor

    from ..study.run import Run


def write_run(
    files: RunFiles,
    run: Run,
    history: Sequence[Mapping[str, Any]],
    model: dict[str, Tensor],
    manifest: Mapping[str, Any],
    clients: dict[str, Tensor] | None = None,
    blends: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of `RunFiles.trained`, the manifest last, and then their checksums.

    `history` has a row for each round, site and split. `model` are the tensors of the global network by name, and
    `clients` those of clients, by `CLIENT/NAME`. `blends` says of which networks with which weights a client predicts.
    """
    import pandas as pd

    about = {"run": run.id}
    write_json(files.spec, run.spec)
    rounds = pd.DataFrame(history)
    rounds.attrs.update(about)
    write_table(files.rounds, rounds)
    write_tensors(files.model, model, about)
    write_tensors(files.clients, clients or {}, about | ({"blends": json.dumps(blends)} if blends else {}))
    write_json(files.manifest, manifest)
    checksums.record(*files.trained)
